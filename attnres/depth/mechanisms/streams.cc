#include "attnres/depth/mechanisms/streams.h"

#include <ATen/core/Tensor.h>

#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/residual_streams/residual_streams.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

// The state's open tensors; the second in a single pass only, behind site 0.
enum StreamsAndRead { kAllStreams, kNextRead };

// From a read to the write that follows it.
struct MapsInUse : CarriedToWrite {
  StreamMaps maps;
};

}  // namespace

StreamMixer::StreamMixer(int64_t streams, const MixerShape& shape, ParameterRegistry& parameters,
                         bool single_pass)
    : NormedMixer(shape, parameters), streams_(streams), single_pass_(single_pass) {}

DepthState StreamMixer::start(const at::Tensor& embedding_TD) const {
  return {.open = {embedding_TD.unsqueeze(1).repeat({1, streams_, 1})}};
}

StatePlan StreamMixer::plan(int site) const {
  StatePlan plan = {.open = {{.name = "streams", .sizes = {streams_, shape().width}}}};
  if (single_pass_ && site > 0) plan.open.push_back({.name = "next read", .sizes = {streams_}});
  return plan;
}

SublayerInput StreamMixer::read(DepthState& state) const {
  // All that reads the streams here adds to one gradient.
  const at::Tensor H_TMD = state.open[kAllStreams] = with_slot(state.open[kAllStreams]);
  const bool at_output = state.site == shape().sublayers;
  at::Tensor read_TM;
  if (!at_output) {
    auto in_use = std::make_unique<MapsInUse>();
    auto& [a_TM, b_TM, A_TMM] = in_use->maps = maps(H_TMD, state.site);
    for (at::Tensor* map : {&a_TM, &b_TM, &A_TMM}) {
      if (map->defined()) *map = held(state, *map);
    }
    read_TM = a_TM;
    state.carried = std::move(in_use);
  }
  if (single_pass_ && state.site > 0) read_TM = state.open[kNextRead].to(compute_dtype(H_TMD));
  if (state.site == 0) return normed(state, H_TMD.select(1, 0));
  return normed(state, read_TM.defined() ? read_streams(H_TMD, read_TM) : H_TMD.sum(1));
}

void StreamMixer::absorb(DepthState& state, const at::Tensor& y_TD) const {
  const StreamMaps& maps = static_cast<const MapsInUse&>(*state.carried).maps;
  const at::Tensor H_TMD = write_streams(state.open[kAllStreams], {maps.mix, maps.write, y_TD});
  state.open = {H_TMD};
  if (single_pass_) state.open.push_back(maps.read.to(H_TMD.scalar_type()));
}

at::Tensor StreamMixer::running_state(const DepthState& state) const {
  return state.open[kAllStreams].mean(1);
}

}  // namespace attnres
