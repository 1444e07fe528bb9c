#include "attnres/depth/composed_mixer.h"

#include <ATen/ATen.h>

#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

// As a trace holds it: with a history only where the state holds its weights.
at::Tensor traced(const DepthState& state, const at::Tensor& mixed_BTD) {
  return state.hold_weights ? mixed_BTD : mixed_BTD.detach();
}

}  // namespace

DepthState ComposedMixer::start(const at::Tensor& embedding_BTD) const {
  return {.open = {embedding_BTD}};
}

void ComposedMixer::write(DepthState& state, SublayerOutput output) const {
  absorb(state, output.y);
  ++state.site;
}

void ComposedMixer::settle(DepthState& state) const {
  state.cache.reset();
}

std::vector<int> ComposedMixer::cuts() const {
  std::vector<int> sites;
  for (int site = 2; site < shape_.sublayers; site += 2) sites.push_back(site);
  return sites;
}

std::vector<std::string> ComposedMixer::source_names(int) const {
  return {};
}

at::Tensor ComposedMixer::running_state(const DepthState& state) const {
  return state.open.empty() ? state.sealed.back() : state.open[0];
}

at::Tensor held(const DepthState& state, const at::Tensor& weight) {
  return state.hold_weights ? weight.detach() : weight;
}

at::Tensor normalize(const DepthState& state, const at::Tensor& x, const at::Tensor& gain,
                     double eps) {
  if (!state.hold_weights) return rms_norm(x, gain, eps);
  const at::Tensor inverse_rms = x.detach().square().mean(-1, /*keepdim=*/true).add(eps).rsqrt();
  return x * (inverse_rms * gain.detach());
}

void show_mixed(ReadTrace* trace, const DepthState& state, const at::Tensor& mixed_BTD) {
  if (trace != nullptr) trace->mixed = traced(state, mixed_BTD);
}

void show_stream(ReadTrace* trace, const DepthState& state, const std::string& name,
                 const at::Tensor& mixed_BTD) {
  if (trace != nullptr) trace->other_streams.emplace_back(name, traced(state, mixed_BTD));
}

at::Tensor add_norm(ParameterRegistry& parameters, int site, const std::string& role,
                    const MixerShape& shape, std::vector<int> used_at) {
  return parameters.add(site, role, ParameterKind::norm_gain, {shape.width}, Init::ones(),
                        Shard::none, std::move(used_at));
}

std::vector<at::Tensor> add_input_norms(ParameterRegistry& parameters, const MixerShape& shape,
                                        int last) {
  std::vector<at::Tensor> gains;
  for (int site = 0; site <= last; ++site) {
    gains.push_back(add_norm(parameters, site, "input_norm", shape));
  }
  return gains;
}

}  // namespace attnres
