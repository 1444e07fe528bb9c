// The arms of a study along one of its axes: what figures draw beside each other.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "attnres/study/study_data.h"

namespace attnres {

// The arms of one combination of the other axes.
struct AxisSeries {
  std::string label;
  std::vector<std::optional<size_t>> arms;  // along the axis
};

struct AxisArms {
  std::vector<std::string> names;  // along the axis
  std::vector<AxisSeries> series;
  // Where the baseline lies on the axis itself, it is no point of it: for each series that arm.
  std::vector<std::optional<size_t>> baselines;
};

// Throws Error as require_grid.
AxisArms arms_along(const StudyData& data, size_t axis);

// Throws Error where so many series with as many places each are far more than a grid's.
void require_grid(size_t series, size_t places);

}  // namespace attnres
