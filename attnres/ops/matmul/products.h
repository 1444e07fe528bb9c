// The matrix products that a linear map is made of, by who is fastest at them (provider.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "attnres/ops/matmul/provider.h"

namespace attnres {

// Of two matrices of one dtype, summed in float32 or better. Results are of that dtype, but of
// bfloat16 the weight's gradient is float32.
//   output            a = x [M, K], b = W [N, K]    a b^T [M, N]
//   input_gradient    a = g [M, N], b = W [N, K]    a b   [M, K]
//   weight_gradient   a = g [M, N], b = x [M, K]    a^T b [N, K]
at::Tensor product(Product which, const at::Tensor& a, const at::Tensor& b);
at::Tensor product(Product which, const at::Tensor& a, const at::Tensor& b, Provider provider);

// Adds a product to `sum`, which may become another tensor.
void add_product(at::Tensor& sum, Product which, const at::Tensor& a, const at::Tensor& b);

}  // namespace attnres
