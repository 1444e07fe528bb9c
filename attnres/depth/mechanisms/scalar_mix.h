// The scalar mix of ELMo (Peters et al., "Deep contextualized word representations", N18-1202,
// Eq. 1) over a PreNorm residual network:
//   h_{l+1} = h_l + f_l(norm(h_l)),  h_0 = embedding
//   h_out = sum_{j=0..J} softmax(s)_j X_j,  the head reads gamma norm(h_out)
// X_j is h before Transformer layer j, X_J what the last one leaves, J the number of layers. The
// logits s, one for each of the J + 1 states, and the scalar gamma are learned and sit at the
// output site; s = 0 and gamma = 1 at first, where h_out is the mean of the X_j. Each norm is
// RMSNorm with its own gain.
//
// Ours: gamma stands after the final norm, which would undo it before.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism scalar_mix_mechanism();

}  // namespace attnres
