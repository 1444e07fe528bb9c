// SiameseNorm (Li et al., arXiv 2602.08064): a PostNorm-like stream x and a PreNorm-like stream y
// of every token, with the same sublayers:
//   o_l = f_l(norm(s_l)),  s_l = x_l + norm(y_l)
//   x_{l+1} = norm(x_l + o_l / c_l),  y_{l+1} = y_l + o_l
//   x_0 = norm(v_0),  y_0 = v_0,  v_0 the embedding;  c_l = sqrt(2 (j + 1)) in Transformer layer j
// The output reads like a site: norm(s_L). Every norm is RMSNorm with a gain [d] of its own, one at
// first: "x_norm" (of x_l), "y_norm" and "input_norm" (of s_l) at sites 0 .. L. s_l is what a site
// shows as its mixed input.
//
// Settings, the paper's two stabilisers:
//   depth_scaling  divides by c_l; without it c = 1. Default true.
//   input_norm     the norm around s_l; without it sublayers and the output read s_l. Default true.
//
// The authors' language models also norm queries, keys and values; this mechanism leaves attention
// as it is, as their published vision models do.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism siamese_norm_mechanism();

}  // namespace attnres
