// LAuReL, the learned augmented residual layer (Menghani et al., arXiv 2411.07501):
//   h_{l+1} = a_l f_l(norm(h_l)) + b_l (h_l + sum_k gamma_{l,k} B_{l,k} A_{l,k} h_{l-k}),
//   h_0 = embedding
// with the parts that `variant` names:
//   RW  the residual weights (a, b) = 2 softmax(s), s [2] learned; otherwise a = b = 1
//   LR  a low-rank map of the present state: k = 0 alone, without gamma
//   PA  low-rank maps of this state and the two before it (k = 0, 1, 2, as far as there are any),
//       each with a learned scalar gamma
// A is [rank, d] and B [d, rank]. Each norm is RMSNorm with its own gain; the output site reads
// norm(h_L). It starts at s = 0 (a = b = 1), gamma = 1, B = 0, A = 1 / sqrt(rank d) where column
// mod rank = row and 0 elsewhere: residual, exactly.
//
// Settings:
//   variant  rw, lr, pa, rw+lr (default) or rw+pa
//   rank     of every map, 1 or more; the paper has 32 to 64. Default 32; rw has no maps.
//
// Ours: the factor 2 of RW, so that a = b = 1 at first; gamma = 1. Unverified: that each state that
// PA looks back to has maps of its own.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism laurel_mechanism();

}  // namespace attnres
