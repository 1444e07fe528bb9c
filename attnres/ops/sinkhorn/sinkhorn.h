// Doubly stochastic matrices by the iteration of Sinkhorn and Knopp, of matrices that are few by
// few and very many:
//
//   A_0 = exp(logits),  A_{2k+1} = A_{2k} with each column divided by its sum,
//   A_{2k+2} = A_{2k+1} with each row divided by its own
//
// in logarithms, so that no sum is zero whatever the logits. The rows of the result sum to one, its
// columns the more nearly the more rounds. Where there is a kernel it is differentiable once, and
// only the logits are kept for the backward; elsewhere it is composed of tensor operations.
//
// In Python: torch.ops.attnres.sinkhorn(logits, rounds).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// A_{2 rounds} [T, m, m] for logits [T, m, m] of float32 or float64 and one round or more. Throws
// Error where the logits are not as said.
at::Tensor sinkhorn(const at::Tensor& logits_TMM, int64_t rounds);

// The same composed of tensor operations, of what was checked: on any device, and as often
// differentiable as one likes.
at::Tensor sinkhorn_composed(const at::Tensor& logits_TMM, int64_t rounds);

}  // namespace attnres
