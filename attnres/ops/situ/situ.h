// SiTU, the gated activation of Kimi K3, element by element:
//   y = bounded(gate, beta) sigma(gate) bounded(up, linear_beta),  bounded(x, b) = b tanh(x / b)
// and up itself where linear_beta is 0. Computed in float64 for float64 and in float32 otherwise,
// the result of gate's dtype. On the CPU one kernel where no gradient is recorded; else composed of
// tensor operations.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// gate and up [..., D], of one shape and dtype; beta > 0.
at::Tensor situ(const at::Tensor& gate, const at::Tensor& up, double beta, double linear_beta);

}  // namespace attnres
