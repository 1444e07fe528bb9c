// Linear maps that each head has its own of, of the few tokens that are decoded at once:
//
//   y_th = W_h x_th      and      y_th = W_h^T x_th
//
// On the CPU in float32 and bfloat16, where no gradient is recorded, a weight is read where it
// lies, by all threads, and sums are float32; elsewhere they are composed of tensor operations.
//
// In Python: torch.ops.attnres.head_maps(x, weight) and transposed_head_maps(x, weight).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// x [T, H, K] and W [H, N, K] give [T, H, N]; float32, float64 or bfloat16, x and W alike, on one
// device. For the kernel the rows of W_h follow each other, and so do the numbers of x_th; heads
// and tokens may lie anywhere. Throws Error unless it is so.
at::Tensor head_maps(const at::Tensor& x_THK, const at::Tensor& w_HNK);

// x [T, H, N] and W [H, N, K] give [T, H, K].
at::Tensor transposed_head_maps(const at::Tensor& x_THN, const at::Tensor& w_HNK);

// Either composed of tensor operations, of what was checked: of any floating dtype, on any device,
// and as often differentiable as one likes.
at::Tensor head_maps_composed(const at::Tensor& x, const at::Tensor& w_HNK, bool transposed);

}  // namespace attnres
