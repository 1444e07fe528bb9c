// ANCRe, adaptive neural connection reassignment (Zhang et al., arXiv 2602.09009): how much of each
// earlier state a Transformer layer's shortcut carries is a learned, normalised scalar:
//   X_0 = v_0,  X_{j+1} = G_j(X_j) + sum_{i=0..j} p_{j,i} X_i,  p_j = softmax(c_j / tau)
//   G_j(X) = r + ffn(norm(r)),  r = X + attention(norm(X))
// for j = 0 .. J-1; the output reads X_J. v_0 is the embedding; X_i are mixed states, not outputs;
// G keeps its inner residuals, and its own output has weight 1. `temperature` is tau, 0.01 as in
// the authors' runs.
//
// c_j ("connections" [j+1], at the layer's feed-forward) starts at 0, where p_j is uniform. c_0 has
// one entry, whose softmax is 1 whatever it is, so it is left out. The softmax is in float32 or
// better. Equation numbers were not seen; the form is that of the authors' description and code.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism ancre_mechanism();

}  // namespace attnres
