// What keeps runs from being compared.
#pragma once

#include <string>
#include <vector>

#include "attnres/report/run_data.h"

namespace attnres {

// Phrases that follow a colon: "different data".
struct RunDifferences {
  // Why the losses do not compare. The text read, its split and tokens, weights begun with, how
  // much was trained on, whether it was made longer on the way and how it is validated must be the
  // same; and where the depth mixing differs, so must every other setting that decides what is
  // learned.
  std::vector<std::string> losses;
  // Why the speeds do not compare: another machine or build, or another way of computing the same.
  std::vector<std::string> speeds;
  // What is compared where the depth mixing is the same: "train.learning_rate (0.001, 0.003)".
  std::vector<std::string> settings;
};

RunDifferences find_differences(const std::vector<RunData>& runs);

// Runs with the same one differ in their seed at most, and in what decides nothing that is learned.
std::string arm_key(const RunData& run);

// The model that a run took its first weights from (train --from), as people name it; empty if it
// began from scratch.
std::string origin(const RunData& run);

}  // namespace attnres
