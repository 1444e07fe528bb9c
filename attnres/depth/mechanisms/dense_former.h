// DenseFormer (Pagliardini et al., arXiv 2402.02622): a learned scalar for every pair of a place
// that reads and a source. The setting `form` says which places and which sources.
//
// "report", as in Table 5 of arXiv 2603.15031, between sublayers without residuals:
//   h_0 = v_0,  h_l = sum_{i=0..l} alpha_{i->l} v_i
// v_0 is the embedding, v_i the output of sublayer i-1. All alpha start at 1: residual.
//
// "original", depth-weighted averages (Section 3) of the outputs of Transformer layers, which keep
// their inner residuals:
//   X_0 = Z_0 = v_0,  Z_j = G_{j-1}(X_{j-1}),  X_j = sum_{i=0..j} alpha_{i->j} Z_i
//   G(X) = r + ffn(norm(r)),  r = X + attention(norm(X))
// The output reads X_J. alpha starts at 1 for i = j, else 0: residual. Every layer averages all
// that came before it (dilation 1, period 1).
//
// alpha ("depth_weights", a vector) of a site sits at that site; site 0 has none, as it reads the
// embedding itself.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism dense_former_mechanism();

}  // namespace attnres
