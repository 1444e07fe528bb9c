#include "attnres/report/speed.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace attnres {
namespace {

constexpr size_t kStepsPerInterval = 3;  // at least

double median(std::vector<double> values) {
  if (values.empty()) return kNotMeasured;
  const auto middle = values.begin() + ptrdiff_t(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*std::max_element(values.begin(), middle) + *middle) / 2;
}

double half_range(const std::vector<double>& values) {
  const auto [least, most] = std::minmax_element(values.begin(), values.end());
  return (*most - *least) / 2;
}

}  // namespace

Speed measure_speed(const std::vector<Metric>& metrics) {
  std::vector<double> steps;
  for (const Metric& metric : metrics) {
    if (metric.tokens_per_second > 0) steps.push_back(metric.tokens_per_second);
  }
  steps.erase(steps.begin(), steps.begin() + ptrdiff_t((steps.size() + 9) / 10));
  if (steps.size() < kStepsPerInterval * kSpeedIntervals)
    return {.tokens_per_second = median(steps)};

  std::vector<double> intervals;
  for (size_t i = 0; i < kSpeedIntervals; ++i) {
    double time = 0;  // of a token, summed over steps of as many tokens each
    const size_t begin = i * steps.size() / kSpeedIntervals;
    const size_t end = (i + 1) * steps.size() / kSpeedIntervals;
    for (size_t step = begin; step < end; ++step) time += 1 / steps[step];
    intervals.push_back(double(end - begin) / time);
  }
  const double speed = median(intervals);
  std::erase_if(intervals,
                [&](double interval) { return std::abs(interval - speed) > kUndisturbed * speed; });
  return {.tokens_per_second = speed,
          .intervals = kSpeedIntervals,
          .undisturbed = int(intervals.size()),
          .spread = intervals.empty() ? kNotMeasured : half_range(intervals) / speed};
}

SpeedRatio speed_ratio(const Speed& speed, const Speed& other) {
  if (!speed.well_measured() || !other.well_measured()) return {};
  const double ratio = speed.tokens_per_second / other.tokens_per_second;
  return {ratio, ratio * (speed.spread + other.spread)};
}

Speed joint_speed(const std::vector<Speed>& speeds) {
  std::vector<double> measured;
  Speed joint;
  for (const Speed& speed : speeds) {
    if (!speed.well_measured()) {
      if (measured.empty()) joint = speed;
      continue;
    }
    measured.push_back(speed.tokens_per_second);
    if (measured.size() == 1 || speed.spread > joint.spread) joint = speed;
  }
  if (measured.empty()) return joint;
  joint.tokens_per_second = median(measured);
  joint.spread = std::max(joint.spread, half_range(measured) / joint.tokens_per_second);
  return joint;
}

std::string why_not_measured(const Speed& speed) {
  if (speed.intervals == 0) return "logged too few steps";
  return fmt::format("was disturbed (only {} of {} intervals within {:g} % of their median)",
                     speed.undisturbed, speed.intervals, 100 * kUndisturbed);
}

std::string caution_of_times(const std::vector<std::string>& runs) {
  constexpr size_t kMostNamed = 4;
  if (runs.empty()) return "";
  std::string names;
  for (size_t i = 0; i < std::min(runs.size(), kMostNamed); ++i) {
    names += (i ? ", " : "") + runs[i];
  }
  if (runs.size() > kMostNamed) names += fmt::format(" and {} more", runs.size() - kMostNamed);
  return fmt::format(
      " Against training time these do not compare, since their speeds were not measured well: {}.",
      names);
}

}  // namespace attnres
