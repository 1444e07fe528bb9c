// DeepNorm (Wang et al., "DeepNet: Scaling Transformers to 1,000 Layers", arXiv 2203.00555), as for
// decoders of J Transformer layers:
//   h_{l+1} = norm_l(alpha h_l + f_l(h_l)),  alpha = (2J)^(1/4),  h_0 = embedding
// norm_l is RMSNorm (the paper: LayerNorm) with a gain [d] that starts at one. Sublayers and the
// output read h_l as it is. The value and output maps of attention and all maps of the feed-forward
// start (8J)^(-1/4) times as large as without it, the query and key maps as ever.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism deep_norm_mechanism();

}  // namespace attnres
