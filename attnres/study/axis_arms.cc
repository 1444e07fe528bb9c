#include "attnres/study/axis_arms.h"

#include <algorithm>

#include "attnres/study/study_recipe.h"
#include "attnres/support/error.h"

namespace attnres {

void require_grid(size_t series, size_t places) {
  require(
      series * places <= size_t{10} * kMostRuns,
      "study.json: {} arms of an axis in {} combinations of the others are no grid's; leave the "
      "figure along it out",
      places, series);
}

AxisArms arms_along(const StudyData& data, size_t axis) {
  AxisArms out;
  const bool holds_baseline = data.study.axes[axis] == data.arms.baseline_axis;
  const auto is_baseline = [&](size_t arm) { return data.arms.baselines[arm] == arm; };
  std::vector<std::vector<std::string>> keys;
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    const std::string& name = data.arms.names[arm][axis];
    if (holds_baseline && is_baseline(arm)) continue;
    if (std::find(out.names.begin(), out.names.end(), name) == out.names.end()) {
      out.names.push_back(name);
    }
  }
  for (size_t arm = 0; arm < data.arms.arms.size(); ++arm) {
    std::vector<std::string> names = data.arms.names[arm];
    names[axis].clear();
    if (std::find(keys.begin(), keys.end(), names) != keys.end()) continue;
    keys.push_back(names);
    AxisSeries& series = out.series.emplace_back();
    require_grid(out.series.size(), out.names.size());
    series.label = data.label_without(arm, axis);
    for (const std::string& name : out.names) {
      names[axis] = name;
      series.arms.push_back(find_arm(data.arms, data.study, names));
    }
    out.baselines.push_back(holds_baseline ? data.arms.baselines[arm] : std::nullopt);
  }
  return out;
}

}  // namespace attnres
