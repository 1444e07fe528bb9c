#include "attnres/report/loss_axes.h"

#include <fmt/core.h>

#include <algorithm>
#include <string>

namespace attnres {
namespace {

struct Unit {
  double size;
  const char* name;
};

const std::vector<Unit> kTokenUnits = {
    {1, ""}, {1e3, "thousand"}, {1e6, "million"}, {1e9, "billion"}, {1e12, "trillion"}};
const std::vector<Unit> kTimeUnits = {
    {1, "seconds"}, {60, "minutes"}, {3600, "hours"}, {86400, "days"}};

// The largest unit that leaves `most` at 2 or more; the first, smallest, if none does.
Unit choose_unit(double most, const std::vector<Unit>& units) {
  Unit chosen = units.front();
  for (const Unit& unit : units) {
    if (most >= 2 * unit.size) chosen = unit;
  }
  return chosen;
}

void scale_x(LinePlot& plot, const std::string& quantity, const std::vector<Unit>& units) {
  double furthest = 0;
  for (const Curve& curve : plot.curves) {
    for (const double value : curve.x) furthest = std::max(furthest, value);
  }
  const Unit unit = choose_unit(furthest, units);
  for (Curve& curve : plot.curves) {
    for (double& value : curve.x) value /= unit.size;
  }
  plot.x_label = *unit.name ? fmt::format("{} ({})", quantity, unit.name) : quantity;
}

}  // namespace

void LossRange::include(const Points& points) {
  for (size_t i = 0; i < points.x.size(); ++i) {
    low_ = std::min(low_, points.y[i]);
    start_ = std::max(start_, points.y[i]);
    if (points.x[i] >= 0.2 * points.x.back()) high_ = std::max(high_, points.y[i]);
  }
}

void LossRange::set(LinePlot& plot) const {
  plot.y_low = low_ - margin();
  plot.y_high = high_ + margin();
}

void scale_to_tokens(LinePlot& plot) {
  scale_x(plot, "tokens", kTokenUnits);
}

void scale_to_time(LinePlot& plot) {
  scale_x(plot, "training time", kTimeUnits);
}

}  // namespace attnres
