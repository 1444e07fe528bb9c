#include "attnres/train/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>

namespace attnres {

AdamW::AdamW(const ParameterRegistry& parameters, const TrainConfig& config)
    : parameters_(parameters), config_(config) {
  for (const Parameter& p : parameters.all()) {
    first_moments.push_back(at::zeros_like(p.tensor).set_requires_grad(false));
    second_moments.push_back(at::zeros_like(p.tensor).set_requires_grad(false));
  }
}

double AdamW::gradient_norm() const {
  double sum = 0;
  for (const Parameter& p : parameters_.all()) {
    if (!p.tensor.grad().defined()) continue;
    const double norm = at::linalg_vector_norm(p.tensor.grad()).item<double>();
    sum += norm * norm;
  }
  return std::sqrt(sum);
}

void AdamW::step(double learning_rate, double factor) {
  const at::NoGradGuard not_recording;
  ++updates;
  for (const bool decay : {true, false}) {
    std::vector<at::Tensor> tensors, gradients, first, second, counts;
    size_t i = 0;
    for (const Parameter& p : parameters_.all()) {
      const size_t index = i++;
      if (!p.tensor.grad().defined() || has_weight_decay(p.kind) != decay) continue;
      p.tensor.grad().mul_(factor);
      tensors.push_back(p.tensor);
      gradients.push_back(p.tensor.grad());
      first.push_back(first_moments[index]);
      second.push_back(second_moments[index]);
      counts.push_back(at::full({}, static_cast<double>(updates), at::kFloat));
    }
    if (tensors.empty()) continue;
    at::_fused_adamw_(tensors, gradients, first, second, /*max_exp_avg_sqs=*/{}, counts,
                      learning_rate, config_.beta1, config_.beta2,
                      decay ? config_.weight_decay : 0.0, config_.epsilon, /*amsgrad=*/false,
                      /*maximize=*/false);
  }
  for (const Parameter& p : parameters_.all()) p.tensor.mutable_grad().reset();
}

}  // namespace attnres
