#include "attnres/depth/composed_mixer.h"

#include <ATen/ops/add.h>
#include <ATen/ops/linear.h>
#include <fmt/core.h>

#include <algorithm>
#include <utility>

namespace attnres {
namespace {

struct CarriedTensor : CarriedToWrite {
  explicit CarriedTensor(at::Tensor carried) : tensor(std::move(carried)) {}
  at::Tensor tensor;
};

}  // namespace

DepthState ComposedMixer::start(const at::Tensor& embedding_TD) const {
  return {.open = {embedding_TD}};
}

SublayerInput ComposedMixer::read(DepthState& state) const {
  show_mixed(state, state.open[0]);
  return {.x = state.open[0]};
}

void ComposedMixer::write(DepthState& state, SublayerOutput output) const {
  absorb(state, output.y);
  state.carried.reset();
  ++state.site;
}

void ComposedMixer::settle(DepthState& state) const {
  state.cache.reset();
}

StatePlan ComposedMixer::plan(int) const {
  return {.open = {{.name = "stream", .sizes = {shape_.width}}}};
}

std::vector<int> ComposedMixer::cuts() const {
  std::vector<int> sites;
  for (int site = 2; site < shape_.sublayers; site += 2) sites.push_back(site);
  return sites;
}

at::Tensor ComposedMixer::running_state(const DepthState& state) const {
  return state.open.empty() ? state.sealed.back() : state.open[0];
}

void ComposedMixer::carry(DepthState& state, at::Tensor tensor) {
  state.carried = std::make_unique<CarriedTensor>(std::move(tensor));
}

const at::Tensor& ComposedMixer::carried(const DepthState& state) {
  return static_cast<const CarriedTensor&>(*state.carried).tensor;
}

NormedMixer::NormedMixer(const MixerShape& shape, ParameterRegistry& parameters)
    : ComposedMixer(shape),
      input_norms_(add_norms(parameters, shape.sublayers, "input_norm", shape)) {}

SublayerInput NormedMixer::read(DepthState& state) const {
  return normed(state, state.open[0]);
}

void NormedMixer::absorb(DepthState& state, const at::Tensor& y_TD) const {
  state.open[0] = at::add(state.open[0], y_TD);
}

SublayerInput NormedMixer::normed(const DepthState& state, const at::Tensor& h_TD) const {
  show_mixed(state, h_TD);
  return {.x = normalize(state, h_TD, input_norms_[state.site], shape().norm_eps)};
}

DepthState SourceMixer::start(const at::Tensor& embedding_TD) const {
  return {.sealed = {embedding_TD}};
}

StatePlan SourceMixer::plan(int site) const {
  return plan_of_outputs(site, shape());
}

void SourceMixer::absorb(DepthState& state, const at::Tensor& y_TD) const {
  state.sealed.push_back(y_TD);
}

std::string source_name(const char* kind, int64_t i) {
  return i == 0 ? "embedding" : fmt::format("{} {}", kind, i);
}

StatePlan plan_of_outputs(int site, const MixerShape& shape) {
  StatePlan plan;
  for (int i = 0; i <= site; ++i) {
    plan.sealed.push_back({.name = source_name("sublayer", i),
                           .sizes = {shape.width},
                           .last_reader = shape.sublayers});
  }
  return plan;
}

StatePlan plan_of_layers(int site, const MixerShape& shape) {
  const bool in_layer = site % 2 == 1;
  StatePlan plan;
  for (int i = 0; i <= site / 2; ++i) {
    plan.sealed.push_back({.name = source_name("layer", i),
                           .sizes = {shape.width},
                           .read = !in_layer,
                           .last_reader = shape.sublayers});
  }
  if (in_layer) plan.open = {{.name = "stream", .sizes = {shape.width}}};
  return plan;
}

std::vector<PlannedTensor> plan_of_keys_and_values(int site, const MixerShape& shape,
                                                   int64_t heads) {
  std::vector<PlannedTensor> sealed;
  const int layers = std::min((site + 1) / 2, shape.layers() - 1);  // whose attention has run
  for (int layer = 1; layer <= layers; ++layer) {
    for (const char* which : {"keys", "values"}) {
      sealed.push_back({.name = fmt::format("{} of layer {}", which, layer),
                        .sizes = {heads, shape.head_width()},
                        .axis = ShardAxis::heads,
                        .read = site % 2 == 0 && site < shape.sublayers,
                        .last_reader = shape.sublayers - 2});
    }
  }
  return sealed;
}

at::Tensor add_norm(ParameterRegistry& parameters, int site, const std::string& role,
                    const MixerShape& shape, std::vector<int> used_at) {
  return parameters.add(site, role, ParameterKind::norm_gain, {shape.width}, Init::ones(),
                        Shard::none, std::move(used_at));
}

std::vector<at::Tensor> add_norms(ParameterRegistry& parameters, int last, const std::string& role,
                                  const MixerShape& shape) {
  std::vector<at::Tensor> gains;
  for (int site = 0; site <= last; ++site) gains.push_back(add_norm(parameters, site, role, shape));
  return gains;
}

at::Tensor wide_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x.to(weight.scalar_type()), weight, bias);
}

}  // namespace attnres
