#include "attnres/depth/mechanisms/streams.h"

#include <ATen/ATen.h>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// From a read to the write that follows it.
struct MapsInUse : CarriedToWrite {
  StreamMaps maps;
};

}  // namespace

StreamMixer::StreamMixer(int64_t streams, const MixerShape& shape, ParameterRegistry& parameters)
    : ComposedMixer(shape),
      streams_(streams),
      input_norms_(add_input_norms(parameters, shape, shape.sublayers)) {}

DepthState StreamMixer::start(const at::Tensor& embedding_BTD) const {
  DepthState state;
  state.open = {embedding_BTD.unsqueeze(2).repeat({1, 1, streams_, 1})};
  return state;
}

StatePlan StreamMixer::plan(int) const {
  return {.open = {{.name = "streams", .sizes = {streams_, shape().width}}}};
}

SublayerInput StreamMixer::read(DepthState& state) const {
  const at::Tensor& H_BTMD = state.open[0];
  at::Tensor h_BTD;
  if (state.site == shape().sublayers) {
    h_BTD = H_BTMD.sum(2);
  } else {
    auto in_use = std::make_unique<MapsInUse>();
    auto& [a_BTM, b_BTM, A_BTMM] = in_use->maps = maps(H_BTMD, state.site);
    for (at::Tensor* map : {&a_BTM, &b_BTM, &A_BTMM}) {
      if (map->defined()) *map = held(state, *map).to(H_BTMD.scalar_type());
    }
    h_BTD =
        state.site == 0 ? H_BTMD.select(2, 0) : at::matmul(a_BTM.unsqueeze(2), H_BTMD).squeeze(2);
    state.carried = std::move(in_use);
  }
  show_mixed(state, h_BTD);
  return {normalize(state, h_BTD, input_norms_[state.site], shape().norm_eps)};
}

void StreamMixer::absorb(DepthState& state, const at::Tensor& y_BTD) const {
  const StreamMaps& maps = static_cast<const MapsInUse&>(*state.carried).maps;
  const at::Tensor mixed_BTMD =
      maps.mix.defined() ? at::matmul(maps.mix, state.open[0]) : state.open[0];
  state.open[0] = at::addcmul(mixed_BTMD, maps.write.unsqueeze(-1), y_BTD.unsqueeze(2));
}

at::Tensor StreamMixer::running_state(const DepthState& state) const {
  return state.open[0].mean(2);
}

at::Tensor project_normalised(const at::Tensor& x, const at::Tensor& projection, double eps) {
  // The norm follows the projection, so that no normalised copy of x is made.
  const at::ScalarType wide = compute_dtype(x);
  const auto width = static_cast<double>(x.size(-1));
  const at::Tensor length = at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, wide);
  return at::linear(x, projection).to(wide) * length.square().div(width).add(eps).rsqrt();
}

void check_streams(int64_t streams, int64_t largest) {
  require_usage(streams >= 2 && streams <= largest,
                "model.depth_mixing.streams: expected 2 to {}, got {}", largest, streams);
}

}  // namespace attnres
