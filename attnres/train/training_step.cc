#include "attnres/train/training_step.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attnres/train/expert_balance.h"

namespace attnres {

TrainingStep::TrainingStep(const Transformer& model, Optimizer& optimizer,
                           const TrainConfig& config)
    : model_(model),
      optimizer_(optimizer),
      recompute_(config.recompute),
      clip_(config.clip),
      expert_balance_rate_(config.expert_balance_rate) {}

void TrainingStep::forward_backward(const Batch& part) {
  const LossSum loss = model_.loss_sum(part.inputs_BT, part.targets_BT,
                                       {.recompute = recompute_, .expert_loads = &expert_loads_});
  loss.sum.backward();
  loss_ += loss.sum.item<double>();
  targets_ += loss.count;
}

StepResult TrainingStep::update(double learning_rate) {
  const double targets = static_cast<double>(targets_);
  const StepResult result = {.loss = std::exchange(loss_, 0) / targets,
                             .gradient_norm = optimizer_.gradient_norm() / targets,
                             .targets = std::exchange(targets_, 0),
                             .expert_loads = std::exchange(expert_loads_, {})};
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) {
    optimizer_.clear_gradients();
    require(result.targets > 0, "training step: none of its targets counts");
    throw Diverged(
        fmt::format("the loss is {} and the gradient norm {}", result.loss, result.gradient_norm));
  }
  const double too_long = clip_ > 0 ? std::max(1.0, result.gradient_norm / clip_) : 1;
  optimizer_.step(learning_rate, targets * too_long);
  balance_experts(model_.parameters(), result.expert_loads, expert_balance_rate_);
  return result;
}

}  // namespace attnres
