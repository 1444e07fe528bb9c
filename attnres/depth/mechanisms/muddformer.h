// MUDDFormer, multiway dynamic dense connections (Xiao et al., arXiv 2502.12170): the query, key,
// value and residual inputs of a Transformer layer are four sums over the outputs of all layers
// before it, with weights that the newest of these outputs gives through a small MLP:
//   A_i = GELU(RMS(Z_i) W1_i) W2_i + a_i
//   X_i^c = sum_{k=0..i} A_{i,k}^c Z_k                                       c = q, k, v, r
//   r = X_i^r + attention(norm(X_i^q), norm(X_i^k), norm(X_i^v))
//   Z_{i+1} = r + ffn(norm(r))
// Z_0 = v_0 is the embedding, Z_i the output of layer i-1. Layer 0 reads v_0 four times, with one
// norm; the output reads X_J^r. RMS has no gain; GELU is the exact one.
//
// For layer i: W1_i ("weight_up") has 4(i+1) hidden units, W2_i ("weight_down") as many outputs,
// a_i ("depth_weights") is [4, i+1]. The output has as many hidden units, and the i+1 weights of
// its one stream, as in the authors' code. W1 ~ N(0, 1/d), W2 = 0, a = 1 at k = i, else 0:
// residual. Left out of the paper: norms of the sums' terms and of the sums ("optional
// normalization") and feed-forwards that grow with depth, which would change the model around the
// mechanism.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism muddformer_mechanism();

}  // namespace attnres
