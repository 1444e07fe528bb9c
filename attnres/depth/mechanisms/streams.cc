#include "attnres/depth/mechanisms/streams.h"

#include <ATen/ATen.h>

#include "attnres/depth/wide_linear.h"
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

DepthState StreamMixer::start(const at::Tensor& embedding_TD) const {
  DepthState state;
  state.open = {embedding_TD.unsqueeze(1).repeat({1, streams_, 1})};
  return state;
}

StatePlan StreamMixer::plan(int) const {
  return {.open = {{.name = "streams", .sizes = {streams_, shape().width}}}};
}

SublayerInput StreamMixer::read(DepthState& state) const {
  const at::Tensor& H_TMD = state.open[0];
  at::Tensor h_TD;
  if (state.site == shape().sublayers) {
    h_TD = H_TMD.sum(1);
  } else {
    auto in_use = std::make_unique<MapsInUse>();
    auto& [a_TM, b_TM, A_TMM] = in_use->maps = maps(H_TMD, state.site);
    for (at::Tensor* map : {&a_TM, &b_TM, &A_TMM}) {
      if (map->defined()) *map = held(state, *map).to(H_TMD.scalar_type());
    }
    h_TD = state.site == 0 ? H_TMD.select(1, 0) : at::matmul(a_TM.unsqueeze(1), H_TMD).squeeze(1);
    state.carried = std::move(in_use);
  }
  show_mixed(state, h_TD);
  return {normalize(state, h_TD, input_norms_[state.site], shape().norm_eps)};
}

void StreamMixer::absorb(DepthState& state, const at::Tensor& y_TD) const {
  const StreamMaps& maps = static_cast<const MapsInUse&>(*state.carried).maps;
  const at::Tensor mixed_TMD =
      maps.mix.defined() ? at::matmul(maps.mix, state.open[0]) : state.open[0];
  state.open[0] = at::addcmul(mixed_TMD, maps.write.unsqueeze(-1), y_TD.unsqueeze(1));
}

at::Tensor StreamMixer::running_state(const DepthState& state) const {
  return state.open[0].mean(1);
}

at::Tensor project_normalised(const at::Tensor& x, const at::Tensor& projection, double eps) {
  // The norm follows the projection, so that no normalised copy of x is made.
  const at::ScalarType wide = compute_dtype(x);
  const auto width = static_cast<double>(x.size(-1));
  const at::Tensor length = at::linalg_vector_norm(x, 2, {-1}, /*keepdim=*/true, wide);
  return wide_linear(x, projection).to(wide) * length.square().div(width).add(eps).rsqrt();
}

void check_streams(int64_t streams, int64_t largest) {
  require_usage(streams >= 2 && streams <= largest,
                "model.depth_mixing.streams: expected 2 to {}, got {}", largest, streams);
}

}  // namespace attnres
