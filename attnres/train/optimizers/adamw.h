// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), through libtorch's
// fused CPU kernel, for gradients g that are given `divisor` times as large:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p = p - lr decay p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
// with the configuration's decay for all.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attnres/parameters/parameters.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

class AdamW {
 public:
  AdamW(std::vector<Parameter> parameters, const TrainConfig& config);

  // Update number `t` (from 1) of every parameter that has a gradient, which is divided in place;
  // the divisor is rounded to float32.
  void step(double learning_rate, int64_t t, double divisor);

  // These three in the same order.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& first_moments() const { return first_moments_; }
  const std::vector<at::Tensor>& second_moments() const { return second_moments_; }

 private:
  std::vector<Parameter> parameters_;
  TrainConfig config_;
  std::vector<at::Tensor> first_moments_, second_moments_;
};

}  // namespace attnres
