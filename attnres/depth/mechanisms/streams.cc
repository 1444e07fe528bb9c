#include "attnres/depth/mechanisms/streams.h"

#include <ATen/core/Tensor.h>

#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/residual_streams/residual_streams.h"

namespace attnres {
namespace {

// From a read to the write that follows it.
struct MapsInUse : CarriedToWrite {
  StreamMaps maps;
};

}  // namespace

StreamMixer::StreamMixer(int64_t streams, const MixerShape& shape, ParameterRegistry& parameters)
    : NormedMixer(shape, parameters), streams_(streams) {}

DepthState StreamMixer::start(const at::Tensor& embedding_TD) const {
  return {.open = {embedding_TD.unsqueeze(1).repeat({1, streams_, 1})}};
}

StatePlan StreamMixer::plan(int) const {
  return {.open = {{.name = "streams", .sizes = {streams_, shape().width}}}};
}

SublayerInput StreamMixer::read(DepthState& state) const {
  // All that reads the streams here adds to one gradient.
  const at::Tensor H_TMD = state.open[0] = with_slot(state.open[0]);
  at::Tensor h_TD;
  if (state.site == shape().sublayers) {
    h_TD = H_TMD.sum(1);
  } else {
    auto in_use = std::make_unique<MapsInUse>();
    auto& [a_TM, b_TM, A_TMM] = in_use->maps = maps(H_TMD, state.site);
    for (at::Tensor* map : {&a_TM, &b_TM, &A_TMM}) {
      if (map->defined()) *map = held(state, *map);
    }
    h_TD = state.site == 0 ? H_TMD.select(1, 0) : read_streams(H_TMD, a_TM);
    state.carried = std::move(in_use);
  }
  return normed(state, h_TD);
}

void StreamMixer::absorb(DepthState& state, const at::Tensor& y_TD) const {
  const StreamMaps& maps = static_cast<const MapsInUse&>(*state.carried).maps;
  state.open[0] = write_streams(state.open[0], {maps.mix, maps.write, y_TD});
}

at::Tensor StreamMixer::running_state(const DepthState& state) const {
  return state.open[0].mean(1);
}

}  // namespace attnres
