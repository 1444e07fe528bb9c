// Keel (Chen and Wei, "Post-LayerNorm Is Back: Stable, ExpressivE, and Deep", arXiv 2601.19895):
// PostNorm over a residual path weighted by the depth, with a second norm before each sublayer.
//   h_{l+1} = norm_l(alpha_l h_l + f_l(norm(h_l))),  h_0 = embedding
// alpha_l = L, the number of sublayers, but 1 in the first Transformer layer (sites 0 and 1); site
// 0 has no outer norm: h_1 = h_0 + f_0(norm(h_0)). Norms are RMSNorm, each with a gain [d] of its
// own that starts at one. The output reads h_L as it is, which the last norm has normed already.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism keel_mechanism();

}  // namespace attnres
