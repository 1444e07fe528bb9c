// The numbers of a report: what each run reached, and which is ahead.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "attnres/study/run_data.h"

namespace attnres {

// What one run reached. Anything that was not measured is NaN (or -1 for a step).
struct RunSummary {
  std::string label;
  std::string mechanism;
  int64_t parameters = -1;
  double best_val_loss = kNotMeasured;
  int64_t best_val_step = -1;
  double final_val_loss = kNotMeasured;
  double tokens_per_second = kNotMeasured;  // median over the second half of the logged steps
  double seconds = kNotMeasured;            // of training, without evaluation
  double tokens = kNotMeasured;             // trained on
  // Against the residual run: best validation loss minus its, and speed over its.
  double loss_difference = kNotMeasured;
  double speed_ratio = kNotMeasured;
};

struct Comparison {
  std::vector<RunSummary> runs;       // in the order given
  std::optional<size_t> best;         // lowest best validation loss
  std::optional<size_t> residual;     // the residual run with the lowest best validation loss
  std::string verdict;                // one sentence
  std::vector<std::string> cautions;  // why losses or speeds may not compare
};

Comparison compare(const std::vector<RunData>& runs);

}  // namespace attnres
