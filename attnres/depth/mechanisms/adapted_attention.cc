#include "attnres/depth/mechanisms/adapted_attention.h"

#include <ATen/ops/add.h>

namespace attnres {

AdaptedAttention::AdaptedAttention(const MixerShape& shape, ParameterRegistry& parameters)
    : ComposedMixer(shape), input_norms_(add_input_norms(parameters, shape, shape.sublayers)) {}

SublayerInput AdaptedAttention::read(DepthState& state) const {
  const at::Tensor& h_TD = state.open[0];
  show_mixed(state, h_TD);
  SublayerInput input = {normalize(state, h_TD, input_norms_[state.site], shape().norm_eps)};
  if (state.site < shape().sublayers && adapts(state.site)) {
    input.adapt_heads = [this, &state](AttentionHeads& heads) { adapt(state, heads); };
  }
  return input;
}

void AdaptedAttention::absorb(DepthState& state, const at::Tensor& y_TD) const {
  state.open[0] = at::add(state.open[0], y_TD);
}

}  // namespace attnres
