// What the mechanisms share that leave the residual stream as it is and reach into attention: its
// heads are mixed with those of earlier layers for the same token, before rotary positions.
//   h_{l+1} = h_l + f_l(norm(h_l)),  h_0 = embedding
#pragma once

#include "attnres/depth/composed_mixer.h"

namespace attnres {

class AdaptedAttention : public NormedMixer {
 public:
  using NormedMixer::NormedMixer;

  SublayerNeeds needs(int site) const final { return {.adapt_heads = adapts(site)}; }
  SublayerInput read(DepthState& state) const final {
    SublayerInput input = NormedMixer::read(state);
    if (state.site < shape().sublayers && adapts(state.site)) {
      input.adapt_heads = [this, &state](AttentionHeads& heads) { adapt(state, heads); };
    }
    return input;
  }

 protected:
  // Whether the heads of the attention at this site are looked at.
  virtual bool adapts(int site) const = 0;
  // Changes the heads of the attention at `state.site`, and seals what later layers need of them.
  virtual void adapt(DepthState& state, AttentionHeads& heads) const = 0;
};

}  // namespace attnres
