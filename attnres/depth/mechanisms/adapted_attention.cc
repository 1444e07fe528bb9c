#include "attnres/depth/mechanisms/adapted_attention.h"

#include <ATen/ops/add.h>

namespace attnres {

AdaptedAttention::AdaptedAttention(const MixerShape& shape, ParameterRegistry& parameters)
    : NormedMixer(shape, parameters) {}

SublayerInput AdaptedAttention::read(DepthState& state) const {
  const at::Tensor& h_TD = state.open[0];
  SublayerInput input = normed(state, h_TD);
  if (state.site < shape().sublayers && adapts(state.site)) {
    input.adapt_heads = [this, &state](AttentionHeads& heads) { adapt(state, heads); };
  }
  return input;
}

void AdaptedAttention::absorb(DepthState& state, const at::Tensor& y_TD) const {
  state.open[0] = at::add(state.open[0], y_TD);
}

}  // namespace attnres
