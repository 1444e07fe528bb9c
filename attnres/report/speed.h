// How fast a run trained, and whether that was measured well enough to compare with another.
//
// The steps after the first tenth, in which a run warms up, are cut into ten intervals of as many
// steps each. The run's speed is the median of theirs. An interval further than 5 % from it was
// disturbed, by another program or by the machine. Ten intervals, eight of them undisturbed, are a
// speed that is worth a ratio; what slows a whole run evenly cannot be seen from within.
#pragma once

#include <string>
#include <vector>

#include "attnres/report/run_data.h"

namespace attnres {

inline constexpr int kSpeedIntervals = 10;
inline constexpr double kUndisturbed = 0.05;  // furthest from the median, over it

struct Speed {
  double tokens_per_second = kNotMeasured;
  int intervals = 0;             // kSpeedIntervals, or 0 where too few steps were logged
  int undisturbed = 0;           // of them
  double spread = kNotMeasured;  // half the range of the undisturbed ones, over the median

  bool well_measured() const { return intervals > 0 && 10 * undisturbed >= 8 * intervals; }
};

Speed measure_speed(const std::vector<Metric>& metrics);

// One over the other.
struct SpeedRatio {
  double ratio = kNotMeasured;   // NaN where one was not measured well
  double margin = kNotMeasured;  // by which it may be off, from both spreads
};
SpeedRatio speed_ratio(const Speed& speed, const Speed& other);

// The speed of runs that differ in their seed: the median of those that were measured well, with a
// spread that covers them. Not measured well where none was.
Speed joint_speed(const std::vector<Speed>& speeds);

// What is wrong with a speed that was not measured well: "was disturbed (...)".
std::string why_not_measured(const Speed& speed);

// What a plot against training time says of the runs with these names, whose speeds were not
// measured well: a sentence with a space before it; empty of none.
std::string caution_of_times(const std::vector<std::string>& runs);

}  // namespace attnres
