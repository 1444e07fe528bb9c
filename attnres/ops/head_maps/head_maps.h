// Linear maps that each head has its own of, of the few tokens that are decoded at once:
//
//   y_th = W_h x_th      and      y_th = W_h^T x_th
//
// A weight is read where it lies, by all threads. Sums are float32.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// x [T, H, K] and W [H, N, K] give [T, H, N], without gradients; on the CPU, float32 or bfloat16,
// x and W alike. The rows of W_h follow each other, and so do the numbers of x_th; heads and tokens
// may lie anywhere. Throws Error unless it is so.
at::Tensor head_maps(const at::Tensor& x_THK, const at::Tensor& w_HNK);

// x [T, H, N] and W [H, N, K] give [T, H, K].
at::Tensor transposed_head_maps(const at::Tensor& x_THN, const at::Tensor& w_HNK);

}  // namespace attnres
