// RMSNorm (Zhang and Sennrich, arXiv 1910.07467) over the last dimension:
//   y = gain * x / sqrt(mean(x^2) + eps)
// x is [..., D], gain [D] in x's dtype or float32. On the CPU in float32, float64 and bfloat16 (the
// statistics in float32 or better) by a kernel of one pass forward and one backward, differentiable
// once; elsewhere composed of tensor operations. Where a gradient is wanted x and one number a
// token are kept. Throws Error, naming the argument, where the inputs are not as said.
//
// In Python: torch.ops.attnres.rms_norm(x, gain, eps) and add_rms_norm(state, pending, gain, eps).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps);

struct AddedAndNormalized {
  at::Tensor sum;         // state + pending
  at::Tensor normalized;  // its RMSNorm
};

// The addition of a residual stream and the norm after it, in the same pass.
AddedAndNormalized add_rms_norm(const at::Tensor& state, const at::Tensor& pending,
                                const at::Tensor& gain, double eps);

// The same composed of tensor operations: any device and dtype, differentiable any number of times.
at::Tensor rms_norm_composed(const at::Tensor& x, const at::Tensor& gain, double eps);
AddedAndNormalized add_rms_norm_composed(const at::Tensor& state, const at::Tensor& pending,
                                         const at::Tensor& gain, double eps);

}  // namespace attnres
