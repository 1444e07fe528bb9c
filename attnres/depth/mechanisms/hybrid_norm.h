// HybridNorm (Zhuo et al., arXiv 2503.04598): the norms of attention are inside it, those of the
// feed-forward after the addition. Of Transformer layer j:
//   u = norm_j(h + attention(h)),  h = u + ffn(u),  h = embedding at first
// where attention reads h as it is and norms each head's queries, keys and values, before rotary
// positions, by RMSNorm over the head's channels. The gains of q, k and v are one [head width]
// each, shared by the heads; norm_j has a gain [d]. All start at one. The output site norms h.
//
// Settings:
//   first_layer_pre_norm  the starred variant: layer 0 is PreNorm, h += f(norm(h)) for both of its
//                         sublayers, with the norms of q, k and v kept. Default false.
//
// The state that a feed-forward reads, and shows as its mixed input, is u. That layer 0 of the
// starred variant keeps the norms of q, k and v is as the authors' published settings have it.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism hybrid_norm_mechanism();

}  // namespace attnres
