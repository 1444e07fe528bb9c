#include "attnres/depth/mixing_analysis.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>

#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

// As a trace holds it: with a history only where weights are held.
at::Tensor traced(const DepthState& state, const at::Tensor& mixed_TD) {
  return holds_weights(state) ? mixed_TD : mixed_TD.detach();
}

}  // namespace

bool holds_weights(const DepthState& state) {
  return state.analysis != nullptr && state.analysis->hold_weights;
}

bool drops_source(const DepthState& state) {
  return state.analysis != nullptr && !state.analysis->dropped_source.empty();
}

at::Tensor without_dropped(const DepthState& state, const at::Tensor& scores,
                           const std::vector<std::string>& sources, double nothing) {
  at::Tensor kept = scores.clone();
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] != state.analysis->dropped_source) continue;
    kept.select(0, static_cast<int64_t>(i)).fill_(nothing);
  }
  return kept;
}

at::Tensor held(const DepthState& state, const at::Tensor& weight) {
  return holds_weights(state) ? weight.detach() : weight;
}

at::Tensor normalize(const DepthState& state, const at::Tensor& x, const at::Tensor& gain,
                     double eps) {
  if (!holds_weights(state)) return rms_norm(x, gain, eps);
  const at::Tensor inverse_rms = x.detach().square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return x * (inverse_rms * gain.detach());
}

void show_mixed(const DepthState& state, const at::Tensor& mixed_TD) {
  if (state.analysis == nullptr) return;
  state.analysis->read = {};
  state.analysis->read.mixed = traced(state, mixed_TD);
}

void show_stream(const DepthState& state, const std::string& name, const at::Tensor& mixed_TD) {
  if (state.analysis == nullptr) return;
  state.analysis->read.other_streams.emplace_back(name, traced(state, mixed_TD));
}

void show_weights(const DepthState& state, const at::Tensor& weights_NT,
                  std::vector<std::string> sources) {
  if (state.analysis == nullptr) return;
  state.analysis->read.weights = weights_NT;
  state.analysis->read.sources = std::move(sources);
}

}  // namespace attnres
