// Muon (Jordan et al., 2024) as in Moonlight (arXiv 2502.16982), for matrices W [out, in] whose
// gradients G are given `divisor` times as large:
//   M = momentum M + G,  O = orthogonalize(G + momentum M)          (Nesterov)
//   W = W - lr decay W - lr 0.2 sqrt(max(out, in)) O
// The factor gives O the root mean square of AdamW's updates, so that both share one learning rate
// and one decay. Of experts [E, out, in] each is a matrix of its own. Under train.precision
// "bfloat16" only O is computed in that. Of a tensor group's matrices, which are whole ones for
// Muon, each process keeps its part of G, M and O; all compute the whole O.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attnres/parameters/parameters.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

inline constexpr int kNewtonSchulzSteps = 5;

// U f(S) V^T of each matrix U S V^T / (|S| + 1e-7), for matrices [out, in] or [E, out, in], in
// their dtype. f is kNewtonSchulzSteps times the quintic x -> 3.4445 x - 4.7750 x^3 + 2.0315 x^5,
// which brings numbers from 0.002 to 1 into 0.68 to 1.21; a matrix of zeros stays one.
at::Tensor orthogonalize(const at::Tensor& matrices);

class Muon {
 public:
  // Takes this process's parts in a tensor group, which must outlive it, or in none. Throws Error
  // unless all are matrices or stacks of matrices.
  Muon(std::vector<Parameter> parameters, const TrainConfig& config,
       const TensorGroup* group = nullptr);

  // Updates every parameter that has a gradient. All of a group call it.
  void step(double learning_rate, double divisor);

  // These two in the same order.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& moments() const { return moments_; }

 private:
  std::vector<Parameter> parameters_;
  TrainConfig config_;
  const TensorGroup* group_;
  std::vector<at::Tensor> moments_;
};

}  // namespace attnres
