#include "attnres/model/magnitudes.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mean.h>

#include <cmath>

namespace attnres {
namespace {

double root_mean_square(const at::Tensor& x) {
  return std::sqrt(x.detach().to(at::kDouble).square().mean().item<double>());
}

}  // namespace

void MagnitudeObserver::on_output(int, const at::Tensor& y, const at::Tensor& running_state) {
  y.retain_grad();
  outputs_.push_back(y);
  state_.push_back(root_mean_square(running_state));
}

Magnitudes MagnitudeObserver::magnitudes() const {
  Magnitudes result = {.output = {}, .state = state_, .gradient = {}};
  for (const at::Tensor& y : outputs_) {
    result.output.push_back(root_mean_square(y));
    result.gradient.push_back(root_mean_square(y.grad()));
  }
  return result;
}

Magnitudes measure_magnitudes(const Transformer& model, const at::Tensor& ids_BT,
                              const at::Tensor& targets_BT) {
  const at::AutoGradMode recording(true);
  MagnitudeObserver observer;
  model.loss(ids_BT, targets_BT, {.observer = &observer}).backward();
  clear_gradients(model);
  return observer.magnitudes();
}

void clear_gradients(const Transformer& model) {
  for (const Parameter& p : model.parameters().all()) p.tensor.mutable_grad().reset();
}

}  // namespace attnres
