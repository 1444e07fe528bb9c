// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), through libtorch's
// fused CPU kernel:
//   m = beta1 m + (1 - beta1) g,  v = beta2 v + (1 - beta2) g^2
//   p = p - lr decay p - lr (m / (1 - beta1^t)) / (sqrt(v / (1 - beta2^t)) + eps)
// decay is zero for norms, embeddings and pseudo-queries.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "attnres/support/parameters.h"
#include "attnres/train/recipe.h"

namespace attnres {

class AdamW {
 public:
  AdamW(const ParameterRegistry& parameters, const TrainConfig& config);

  // The L2 norm of all gradients together, in float64. Parameters without a gradient count as zero.
  double gradient_norm() const;
  // Scales every gradient by `factor`, updates every parameter, and clears the gradients.
  void step(double learning_rate, double factor);

  // Number of updates done, and the moments in the order of the parameters; both can be assigned to
  // when a run resumes.
  int64_t updates = 0;
  std::vector<at::Tensor> first_moments, second_moments;

 private:
  const ParameterRegistry& parameters_;
  TrainConfig config_;
};

}  // namespace attnres
