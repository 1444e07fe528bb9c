// SiTU, the gated activation of Kimi K3, element by element:
//   y = bounded(gate, beta) sigma(gate) bounded(up, linear_beta),  bounded(x, b) = b tanh(x / b)
// and up itself where linear_beta is 0. gate and up have one shape, dtype and device; else it
// throws Error. Computed in float64 for float64 and in float32 otherwise, the result of gate's
// dtype. On the CPU in float32, float64 and bfloat16 one kernel forward and one backward, which
// keeps gate and up only and is differentiable once; elsewhere composed of tensor operations.
//
// In Python: torch.ops.attnres.situ(gate, up, beta, linear_beta).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// beta > 0.
at::Tensor situ(const at::Tensor& gate, const at::Tensor& up, double beta, double linear_beta);

// The same composed of tensor operations: any device and dtype, differentiable any number of times.
at::Tensor situ_composed(const at::Tensor& gate, const at::Tensor& up, double beta,
                         double linear_beta);

}  // namespace attnres
