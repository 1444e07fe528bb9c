// Doubly stochastic matrices by the iteration of Sinkhorn and Knopp, of matrices that are few by
// few and very many:
//
//   A_0 = exp(logits),  A_{2k+1} = A_{2k} with each column divided by its sum,
//   A_{2k+2} = A_{2k+1} with each row divided by its own
//
// in logarithms, so that no sum is zero whatever the logits. The rows of the result sum to one, its
// columns the more nearly the more rounds. On the CPU in float32 and float64, differentiable once;
// only the logits are kept for the backward.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// A_{2 rounds} [T, m, m] for logits [T, m, m] and one round or more. Throws Error where the logits
// are not as said.
at::Tensor sinkhorn(const at::Tensor& logits_TMM, int64_t rounds);

}  // namespace attnres
