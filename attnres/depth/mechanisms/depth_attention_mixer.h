// Depth attention (Dreamer; Knupp et al., arXiv 2601.21582): the residual stream, and before every
// Transformer layer j an attention of each token over its own states so far,
//   X_j <- X_j + O concat_h( sum_{i=0..j} softmax_i( q_h . k_{i,h} / sqrt(d_h) ) v_{i,h} )
//   q = W_q norm(X_j),  k_i = W_k norm(X_i),  v_i = W_v norm(X_i)
// X_i is the state that layer i begins with (X_0 the embedding), before this is added to it. The
// maps and the norm's gain are shared by all layers, as the paper shares its one layer over depth;
// the heads are the model's, d_h = d/H.
//
// The paper's equations were not to be had: it says that keys and values are those of the token's
// earlier depths and that the layer is shared. Ours are the place (before the attention), the norm,
// no positions along depth, and O = 0 at the start, which makes it residual there. It is not the
// Depth-Attention of arXiv 2606.05014, which mixes values inside attention.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism depth_attention_mechanism();

}  // namespace attnres
