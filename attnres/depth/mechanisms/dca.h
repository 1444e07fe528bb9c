// DeepCrossAttention (Heddes et al., arXiv 2502.06785): the query, key and value inputs of a
// Transformer layer are three generalised residuals (GRN-v3) over the embedding and the outputs of
// the layers before it:
//   g = sum_i (b_i + relu(w . RMS(v_i))) * v_i            its own b and w for g_q, g_k, g_v
//   o = attention(norm(g_q), norm(g_k), norm(g_v))
//   v_{j+1} = o + ffn(norm(o + g_q))
// v_0 is the embedding, v_{j+1} the output of layer j without its residual; b_i and w are vectors
// of size d ("query_bias" [sources, d], "query_score" [d], and so on); the score w . RMS(v_i) is
// one number for all channels. The output reads one more g ("bias", "score").
//
// `recent_layers` = k > 0 keeps the state small (the paper's k-DCA, k = 2 there): sources are v_0,
// the sum of the outputs in the middle, and the last k outputs. 0, the default, is all of them.
//
// b starts at 1. With w = 0 this is residual, but there relu has no gradient and w would never
// move; so w starts at random, its scores about 1e-3. Not verified against the paper: that the
// feed-forward's residual is g_q, the norm inside g (RMS without gain, which w would absorb), and
// the g at the output; a public reimplementation has all three.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism dca_mechanism();

}  // namespace attnres
