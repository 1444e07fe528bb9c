// The gradient of a linear map's weight on the CPU, built of small products.
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

// sum_NK = g^T x, or sum_NK + g^T x where `add` is true, for g [M, N] and x [M, K] of a dtype that
// has small products, and a contiguous sum of float32. The same bits for any number of threads.
void weight_gradient_in_blocks(const at::Tensor& grad_MN, const at::Tensor& x_MK,
                               const at::Tensor& sum_NK, bool add);

}  // namespace attnres
