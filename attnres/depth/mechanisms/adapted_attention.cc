#include "attnres/depth/mechanisms/adapted_attention.h"

namespace attnres {

SublayerInput AdaptedAttention::read(DepthState& state) const {
  SublayerInput input = NormedMixer::read(state);
  if (state.site < shape().sublayers && adapts(state.site)) {
    input.adapt_heads = [this, &state](AttentionHeads& heads) { adapt(state, heads); };
  }
  return input;
}

}  // namespace attnres
