// What a run tells whoever started it, and asks of them. None of these needs to be answered: a
// plain TrainObserver lets the run go through in silence.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "attnres/model/depth_weights.h"

namespace attnres {

// A step that was just done.
struct StepReport {
  int64_t step = 0;
  double loss = 0;  // of the step's tokens before it, nats per token
  double gradient_norm = 0, learning_rate = 0;
  double seconds = 0, tokens_per_second = 0;  // of the step alone, without evaluation
  // As last measured, at this step or before.
  std::optional<double> validation_loss;
  std::optional<DepthWeightSummary> depth_weights;  // of mechanisms that have them
};

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;
  // What the run is busy with until the next call: "reading text".
  virtual void on_activity(std::string_view /*activity*/) {}
  // A line worth keeping: a warning, or what the run trains on.
  virtual void on_message(std::string_view /*line*/) {}
  // Before the first step, with `step` of `steps` done by an earlier process.
  virtual void on_begin(int64_t /*step*/, int64_t /*steps*/) {}
  virtual void on_step(const StepReport&) {}
  // Asked after each step. Where it is true the run saves itself and returns.
  virtual bool should_stop() { return false; }
};

}  // namespace attnres
