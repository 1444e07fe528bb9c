#include "attnres/train/optimizers/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace attnres {

AdamW::AdamW(std::vector<Parameter> parameters, const TrainConfig& config)
    : parameters_(std::move(parameters)), config_(config) {
  for (const Parameter& p : parameters_) {
    first_moments_.push_back(at::zeros_like(p.tensor).set_requires_grad(false));
    second_moments_.push_back(at::zeros_like(p.tensor).set_requires_grad(false));
  }
}

void AdamW::step(double learning_rate, int64_t t, double divisor) {
  const at::NoGradGuard not_recording;
  std::vector<at::Tensor> tensors, gradients, first, second;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& p = parameters_[i];
    if (!p.tensor.grad().defined()) continue;
    tensors.push_back(p.tensor);
    gradients.push_back(p.tensor.grad());
    first.push_back(first_moments_[i]);
    second.push_back(second_moments_[i]);
  }
  if (tensors.empty()) return;
  const auto options = tensors[0].options().dtype(at::kFloat);
  const at::Tensor count = at::full({}, static_cast<double>(t), options);
  const std::vector<at::Tensor> counts(tensors.size(), count);
  at::_fused_adamw_(tensors, gradients, first, second, /*max_exp_avg_sqs=*/{}, counts,
                    learning_rate, config_.beta1, config_.beta2, config_.weight_decay,
                    config_.epsilon, /*amsgrad=*/false, /*maximize=*/false,
                    at::full({}, divisor, options));
  // Which libtorch forgets to say: copies of weights go by it.
  for (const at::Tensor& tensor : tensors) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace attnres
