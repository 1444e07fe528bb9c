// The gated activation of SwiGLU (Shazeer, arXiv 2002.05202): y = silu(gate) * up, with
// silu(g) = g / (1 + e^-g), element by element. gate and up have one shape, dtype and device; else
// it throws Error. On the CPU in float32, float64 and bfloat16 one kernel forward and one backward,
// which keeps gate and up only and is differentiable once; elsewhere composed of tensor operations.
//
// In Python: torch.ops.attnres.swiglu(gate, up).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

at::Tensor swiglu(const at::Tensor& gate, const at::Tensor& up);

// The same composed of tensor operations: any device and dtype, differentiable any number of times.
at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up);

}  // namespace attnres
