#include "attnres/train/muon.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "attnres/support/error.h"

namespace attnres {

at::Tensor orthogonalize(const at::Tensor& matrices) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const bool tall = matrices.size(-2) > matrices.size(-1);
  // Wide, so that X X^T is of the shorter side.
  at::Tensor x = tall ? matrices.transpose(-2, -1) : matrices;
  if (x.dim() == 2) x = x.unsqueeze(0);
  x = x.div(at::linalg_vector_norm(x, 2, at::IntArrayRef({1, 2}), /*keepdim=*/true).add(1e-7));
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    const at::Tensor gram = at::bmm(x, x.transpose(1, 2));
    x = at::baddbmm(x, at::baddbmm(gram, gram, gram, kB, kC), x, kA, 1);
  }
  return (tall ? x.transpose(1, 2) : x).reshape(matrices.sizes());
}

Muon::Muon(std::vector<Parameter> parameters, const TrainConfig& config)
    : parameters_(std::move(parameters)), config_(config) {
  for (const Parameter& p : parameters_) {
    require(p.tensor.dim() == 2 || p.tensor.dim() == 3,
            "muon: {} of site {} has {} dimensions, expected a matrix [out, in] or a stack of them",
            p.role, p.site, p.tensor.dim());
    moments_.push_back(at::zeros_like(p.tensor).set_requires_grad(false));
  }
}

void Muon::step(double learning_rate, double divisor) {
  const at::NoGradGuard not_recording;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor w = parameters_[i].tensor, moment = moments_[i];
    const at::Tensor& gradient = w.grad();
    if (!gradient.defined()) continue;
    moment.mul_(config_.muon_momentum).add_(gradient, 1 / divisor);
    const at::Tensor update =
        orthogonalize(gradient.add(moment, config_.muon_momentum * divisor).div_(divisor));
    const double longer = static_cast<double>(std::max(w.size(-2), w.size(-1)));
    w.mul_(1 - learning_rate * config_.weight_decay)
        .add_(update, -learning_rate * 0.2 * std::sqrt(longer));
  }
}

}  // namespace attnres
