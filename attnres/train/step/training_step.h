// One step of training, with a batch in one part or more:
//
//   for (const Batch& part : parts) step.forward_backward(part);
//   const StepResult result = step.update(learning_rate);
//
// What forward_backward gathers are sums over tokens: of losses, of their gradients, of targets,
// of the tokens that chose each expert, and the tokens themselves, but for those that fill up rows.
// They are divided by the number of targets in update alone. So a step is the same, but for
// rounding, however its batch is cut into parts; processes that have parts each (parallel_steps.h)
// add these sums together before they move the parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/model/batch.h"
#include "attnres/model/transformer.h"
#include "attnres/support/error.h"
#include "attnres/train/optimizers/optimizer.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

// A row of a step, from 0, whose loss or gradient by itself is not finite.
struct BrokenRow {
  int64_t row = 0;
  int64_t token = -1;  // of the row, the first whose loss is not; -1 where that is not known
};

// The broken rows of a step. None where all is well with each row alone.
struct BrokenRows {
  std::vector<BrokenRow> rows = {};
  double loss_of_others = 0;  // mean over the targets of all other rows; 0 where there are none
};

// What should be a number no longer is: the learning rate was too high, or it is of the data.
class Diverged : public Error {
 public:
  using Error::Error;
  int exit_code() const override { return kDivergedCode; }
  BrokenRows broken = {};
};

// As a message says it: "nan" without a sign, which means nothing.
std::string describe_number(double number);

// Whether the numbers of all parameters are finite; and throws Diverged unless they are.
bool are_weights_finite(const Transformer& model);
void require_finite_weights(bool are_finite);

struct StepResult {
  double loss = 0;           // mean over the targets, nats
  double gradient_norm = 0;  // of the mean loss, before it was clipped
  int64_t targets = 0;       // that counted
  int64_t tokens = 0;        // of the text: without those that fill up rows
  ExpertLoads expert_loads;  // on the CPU
};

// What the parts of a step add up to, beside the gradients.
struct StepSums {
  double loss = 0;  // nats
  int64_t targets = 0, tokens = 0;
  ExpertLoads expert_loads = {};
};

// Moves the parameters along their gradients, which are sums, of the norm `gradient_norm`: with the
// gradient of the mean loss, scaled down to the norm `config.clip` where it is longer; and the
// experts' router biases by the loads. Throws as TrainingStep::update.
StepResult move_parameters(const ParameterRegistry& parameters, Optimizer& optimizer,
                           const TrainConfig& config, StepSums sums, double gradient_norm,
                           double learning_rate);

class TrainingStep {
 public:
  // Takes recompute, clip and expert_balance_rate of `config`. Model and optimizer must outlive it.
  TrainingStep(const Transformer& model, Optimizer& optimizer, const TrainConfig& config);

  // Adds the sums of one part.
  void forward_backward(const Batch& part);

  // Moves the parameters. The host waits for the device here alone, once: for the loss, the norm
  // and the experts' loads, in one copy. Ends the step: the next part belongs to another. Where the
  // loss or the norm is not finite it throws Diverged, where no target counts Error; then the step
  // is dropped and nothing has moved.
  StepResult update(double learning_rate);

 private:
  const Transformer& model_;
  Optimizer& optimizer_;
  TrainConfig config_;
  at::Tensor loss_;  // the parts' sum, float64 on the model's device
  StepSums sums_;    // what else the parts add up to; their gradients are in the parameters
};

}  // namespace attnres
