// Arms: recipes, each run with several seeds, and what the seeds say of the difference of two.
//
// A seed decides the order of the data and the start of every parameter that two recipes share. So
// runs with the same seed are a pair, and their difference is free of the chance they share.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "attnres/report/run_summary.h"
#include "attnres/report/statistics.h"

namespace attnres {

// The seeds that it would take to tell this are said: nats per token.
inline constexpr double kDifferenceToTell = 0.005;

// An arm's final losses minus the baseline's, over the seeds that both have.
struct ArmDifference {
  size_t pairs = 0;
  double mean = kNotMeasured;                // of one pair at least
  std::optional<PairedTest> test = {};       // of two pairs at least
  double p_value = kNotMeasured;             // the test's, by Holm for all arms that are tested
  std::optional<size_t> pairs_to_tell = {};  // kDifferenceToTell, by the differences' deviation
  // "better" or "worse" where p_value < 0.05, else "not distinguishable"; why there is no test;
  // of a baseline "baseline"; empty where the arm is compared with nothing.
  std::string verdict = {};
};

// Runs that differ in nothing but their seed.
struct Arm {
  std::string label;  // the run's; of several what these share but for seeds, or the mechanism
  std::vector<size_t> runs;  // at least one, in the order given
  bool residual = false;
  std::map<int64_t, double> losses = {};  // final ones by seed; of runs that repeat a seed the mean
  ArmDifference difference = {};          // to the baseline, which has none itself

  double mean_loss() const;       // over seeds; NaN where no loss was measured
  double loss_deviation() const;  // over seeds; NaN of fewer than two
};

// Two arms over the seeds that both have; over all where they share none.
struct Pairing {
  double ours = kNotMeasured, theirs = kNotMeasured;  // mean final losses
  std::vector<double> differences;                    // ours minus theirs, by seed
};
Pairing pair_up(const Arm& ours, const Arm& theirs);

// The arms of all runs, in the order of their first.
std::vector<Arm> group_into_arms(const std::vector<RunData>& runs,
                                 const std::vector<RunSummary>& summaries);

// Fills in the difference of each arm to its baseline, the arm with that index: itself of a
// baseline, none where it is compared with nothing. All tests are corrected as one table.
void compare_arms(std::vector<Arm>& arms, const std::vector<std::optional<size_t>>& baselines);

}  // namespace attnres
