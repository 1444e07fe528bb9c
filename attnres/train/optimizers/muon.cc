#include "attnres/train/optimizers/muon.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cmath>

#include "attnres/ops/matmul/products.h"
#include "attnres/support/error.h"

namespace attnres {

namespace {

// a X + (b G + c G G) X, G = X X^T
at::Tensor newton_schulz_step(const at::Tensor& x) {
  constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;
  const at::Tensor gram = product(Product::output, x, x);
  const at::Tensor factor = product(Product::output, gram, gram).mul_(kC).add_(gram, kB);
  return product(Product::input_gradient, factor, x).add_(x, kA);
}

}  // namespace

at::Tensor orthogonalize(const at::Tensor& matrices) {
  if (matrices.dim() == 3) {
    std::vector<at::Tensor> each;
    for (const at::Tensor& matrix : matrices.unbind(0)) each.push_back(orthogonalize(matrix));
    return at::stack(each);
  }
  const bool tall = matrices.size(0) > matrices.size(1);
  // Wide, so that X X^T is of the shorter side.
  at::Tensor x = tall ? matrices.t().contiguous() : matrices;
  x = x.div(at::linalg_vector_norm(x).add(1e-7));
  for (int step = 0; step < kNewtonSchulzSteps; ++step) x = newton_schulz_step(x);
  return tall ? x.t() : x;
}

Muon::Muon(std::vector<Parameter> parameters, const TrainConfig& config, const TensorGroup* group)
    : parameters_(std::move(parameters)), config_(config), group_(group) {
  for (const Parameter& p : parameters_) {
    require(p.tensor.dim() == 2 || p.tensor.dim() == 3,
            "muon: {} of site {} has {} dimensions, expected a matrix [out, in] or a stack of them",
            p.role, p.site, p.tensor.dim());
    moments_.push_back(at::zeros_like(p.tensor).set_requires_grad(false));
  }
}

void Muon::step(double learning_rate, double divisor) {
  const at::NoGradGuard not_recording;
  const at::ScalarType activations = precision_of(config_).activations;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor w = parameters_[i].tensor, moment = moments_[i];
    const at::Tensor& gradient = w.grad();
    if (!gradient.defined()) continue;
    moment.mul_(config_.muon_momentum).add_(gradient, 1 / divisor);
    at::Tensor direction = gradient.add(moment, config_.muon_momentum * divisor).div_(divisor);
    if (activations != at::kFloat) direction = direction.to(activations);
    if (group_ != nullptr) direction = whole_of_parameter(*group_, parameters_[i], direction);
    const double longer = static_cast<double>(std::max(direction.size(-2), direction.size(-1)));
    at::Tensor update = orthogonalize(direction);
    if (group_ != nullptr) update = part_of_parameter(group_->part(), parameters_[i], update);
    w.mul_(1 - learning_rate * config_.weight_decay)
        .add_(update, -learning_rate * 0.2 * std::sqrt(longer));
  }
}

}  // namespace attnres
