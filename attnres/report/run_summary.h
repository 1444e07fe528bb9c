// What one run reached.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "attnres/report/run_data.h"
#include "attnres/report/speed.h"

namespace attnres {

// Anything that was not measured is NaN (or -1 for a step).
struct RunSummary {
  std::string label;
  std::string mechanism;
  std::optional<int64_t> seed = {};
  int64_t parameters = -1;
  double final_val_loss = kNotMeasured;  // the last that was measured
  int64_t final_val_step = -1;
  double best_val_loss = kNotMeasured;
  int64_t best_val_step = -1;
  std::optional<int64_t> diverged_at = {};  // as RunData has it
  Speed speed = {};
  double seconds = kNotMeasured;  // of training, without evaluation
  double tokens = kNotMeasured;   // trained on
  // The residual run with its seed, or else the first; none where no run is residual.
  std::optional<size_t> baseline = {};
  // Against the baseline: final validation loss minus its, and speed over its. NaN where losses or
  // speeds do not compare, and for a speed that was not measured well enough.
  double loss_difference = kNotMeasured;
  double speed_ratio = kNotMeasured;
};

// All of it but what is against the baseline.
RunSummary summarize(const RunData& run);

}  // namespace attnres
