// PostNorm, the original Transformer's residual connection (Vaswani et al., arXiv 1706.03762,
// section 3.1, with RMSNorm for LayerNorm):
//   h_{l+1} = norm_l(h_l + f_l(h_l)),  h_0 = embedding
// f_l is sublayer l, norm_l RMSNorm with a gain [d] of its own that starts at one. Sublayers read
// h_l as it is, and so does the output, which the last norm has normed already.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism post_norm_mechanism();

}  // namespace attnres
