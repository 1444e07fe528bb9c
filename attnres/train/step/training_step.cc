#include "attnres/train/step/training_step.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "attnres/train/step/expert_balance.h"

namespace attnres {

bool are_weights_finite(const Transformer& model) {
  std::vector<at::Tensor> finite;
  for (const Parameter& p : model.parameters().all()) {
    if (!p.packed.defined()) finite.push_back(p.tensor.isfinite().all());
  }
  return at::stack(finite).all().item<bool>();
}

void require_finite_weights(bool are_finite) {
  if (!are_finite) throw Diverged("the weights are no longer finite");
}

std::string describe_number(double number) {
  return std::isnan(number) ? "nan" : fmt::format("{}", number);
}

StepResult move_parameters(const ParameterRegistry& parameters, Optimizer& optimizer,
                           const TrainConfig& config, StepSums sums, double gradient_norm,
                           double learning_rate) {
  const double targets = static_cast<double>(sums.targets);
  StepResult result = {.loss = sums.loss / targets,
                       .gradient_norm = gradient_norm / targets,
                       .targets = sums.targets,
                       .tokens = sums.tokens,
                       .expert_loads = std::move(sums.expert_loads)};
  if (!std::isfinite(result.loss) || !std::isfinite(result.gradient_norm)) {
    optimizer.clear_gradients();
    require(result.targets > 0, "training step: none of its targets counts");
    throw Diverged(fmt::format("the loss is {} and the gradient norm {}",
                               describe_number(result.loss),
                               describe_number(result.gradient_norm)));
  }
  const double too_long = config.clip > 0 ? std::max(1.0, result.gradient_norm / config.clip) : 1;
  optimizer.step(learning_rate, targets * too_long);
  balance_experts(parameters, result.expert_loads, config.expert_balance_rate);
  return result;
}

TrainingStep::TrainingStep(const Transformer& model, Optimizer& optimizer,
                           const TrainConfig& config)
    : model_(model),
      optimizer_(optimizer),
      config_(config),
      loss_(at::zeros({}, at::TensorOptions(model.parameters().device()).dtype(at::kDouble))) {}

void TrainingStep::forward_backward(const Batch& part) {
  const LossSum loss =
      model_.loss_sum(part, {.recompute = config_.recompute, .expert_loads = &sums_.expert_loads});
  if (loss.sum.requires_grad()) loss.sum.backward();  // something is trained
  loss_.add_(loss.sum.detach());
  sums_.targets += loss.count;
  sums_.tokens += part.tokens();
}

StepResult TrainingStep::update(double learning_rate) {
  const at::Tensor squares =
      optimizer_.squared_gradient_norm([](const Parameter&) { return true; });
  StepSums sums = std::exchange(sums_, {});
  std::vector<at::Tensor> numbers = {loss_.view(1), squares.view(1)};
  for (const auto& [site, load_E] : sums.expert_loads) numbers.push_back(load_E.to(at::kDouble));
  const at::Tensor read = at::cat(numbers).to(at::kCPU);
  loss_.zero_();
  sums.loss = read[0].item<double>();
  int64_t next = 2;
  for (auto& [site, load_E] : sums.expert_loads) {
    load_E =
        read.narrow(0, std::exchange(next, next + load_E.numel()), load_E.numel()).to(at::kLong);
  }
  return move_parameters(model_.parameters(), optimizer_, config_, std::move(sums),
                         std::sqrt(read[1].item<double>()), learning_rate);
}

}  // namespace attnres
