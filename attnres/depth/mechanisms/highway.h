// Highway networks (Srivastava et al., arXiv 1505.00387, Eq. 3, the carry gate 1 - g):
//   h_{l+1} = (1 - g_l) * h_l + g_l * f_l(norm(h_l)),  h_0 = embedding
//   g_l = sigmoid(W_l h_l + b_l)
// W_l [d, d] and b_l [d] are learned. Each norm is RMSNorm with its own gain; the output site reads
// norm(h_L).
//
// Ours: W = 0 and b = -2 at first (the paper: a negative bias), so that every gate opens by 0.12;
// the gate reads h_l before its norm.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism highway_mechanism();

}  // namespace attnres
