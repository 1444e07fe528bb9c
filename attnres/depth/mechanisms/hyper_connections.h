// Dynamic hyper-connections (Zhu et al., arXiv 2409.19606, sections 2.1 and 2.2, Algorithm 2). With
// the m streams as the columns of H, d x m:
//   H <- H A + f(norm(H a)) b^T
//   [a | A] = static + s tanh(N W^T),  b = static' + s' tanh(N w^T),  N = norm of each stream of H
// so that stream i alone decides a_i, row i of A and b_i. m is the setting `streams`; H is as
// before the sublayer. norm: RMSNorm over d, one gain for all streams (the paper: LayerNorm).
//
// Start: W = w = 0, s = s' = 0.01, A the identity, b one, a one-hot at l mod m. Every stream is
// then the residual stream, and so is the output, m times. The last map of every sublayer starts
// sqrt(m) times larger, as the paper has it. Site 0 has no `a` (streams.h).
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism hyper_connections_mechanism();

}  // namespace attnres
