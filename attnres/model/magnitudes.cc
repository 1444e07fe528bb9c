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

void MagnitudeObserver::on_output(int site, const at::Tensor& y, const at::Tensor& running_state) {
  y.retain_grad();
  seen_[site] = {y, root_mean_square(running_state)};
}

std::map<int, SiteMagnitudes> MagnitudeObserver::by_site() const {
  std::map<int, SiteMagnitudes> result;
  for (const auto& [site, seen] : seen_) {
    result[site] = {.output = root_mean_square(seen.output),
                    .state = seen.state,
                    .gradient = root_mean_square(seen.output.grad())};
  }
  return result;
}

Magnitudes measure_magnitudes(const Transformer& model, const at::Tensor& ids_BT,
                              const at::Tensor& targets_BT) {
  const at::AutoGradMode recording(true);
  MagnitudeObserver observer;
  model.loss(ids_BT, targets_BT, {.observer = &observer}).backward();
  clear_gradients(model);
  Magnitudes result;
  for (const auto& [site, magnitudes] : observer.by_site()) {
    result.output.push_back(magnitudes.output);
    result.state.push_back(magnitudes.state);
    result.gradient.push_back(magnitudes.gradient);
  }
  return result;
}

void clear_gradients(const Transformer& model) {
  for (const Parameter& p : model.parameters().all()) p.tensor.mutable_grad().reset();
}

}  // namespace attnres
