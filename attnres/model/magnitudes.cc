#include "attnres/model/magnitudes.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>

namespace attnres {
namespace {

// Some rows at a time, so that their squares in float64 take no memory to speak of.
double root_mean_square(const at::Tensor& x) {
  constexpr int64_t kNumbers = 1 << 18;
  const int64_t row = std::max<int64_t>(x.numel() / std::max<int64_t>(x.size(0), 1), 1);
  double sum = 0;
  for (const at::Tensor& rows : x.detach().split(std::max<int64_t>(kNumbers / row, 1))) {
    sum += rows.to(at::kDouble).square().sum().item<double>();
  }
  return std::sqrt(sum / static_cast<double>(x.numel()));
}

}  // namespace

void MagnitudeObserver::on_output(int site, const at::Tensor& y, const at::Tensor& running_state) {
  seen_[site] = {.output = root_mean_square(y), .state = root_mean_square(running_state)};
  if (y.requires_grad()) on_output_again(site, y);
}

void MagnitudeObserver::on_output_again(int site, const at::Tensor& y) {
  y.register_hook([this, site](const at::Tensor& gradient) {
    seen_[site].gradient = root_mean_square(gradient);
  });
}

Magnitudes measure_magnitudes(const Transformer& model, const at::Tensor& ids_BT,
                              const at::Tensor& targets_BT) {
  const at::AutoGradMode recording(true);
  MagnitudeObserver observer;
  const at::Tensor loss = model.loss(ids_BT, targets_BT, {.observer = &observer});
  if (loss.requires_grad()) loss.backward();  // something is trained
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
