// The matrix products that a linear map and its gradients are made of: on the CPU by who is fastest
// at them (provider.h).
#pragma once

#include <ATen/core/Tensor.h>

#include "attnres/ops/device_table.h"
#include "attnres/ops/matmul/provider.h"

namespace attnres {

// The product of two matrices of one dtype, summed in float32 or better. Results are of that dtype,
// but of bfloat16 the weight's gradient is float32.
//   output            a = x [M, K], b = W [N, K]    a b^T [M, N]
//   input_gradient    a = g [M, N], b = W [N, K]    a b   [M, K]
//   weight_gradient   a = g [M, N], b = x [M, K]    a^T b [N, K]
at::Tensor product(Product which, const at::Tensor& a, const at::Tensor& b);

// Adds a product to `sum`, which may become another tensor.
void add_product(at::Tensor& sum, Product which, const at::Tensor& a, const at::Tensor& b);

// The same by at::mm, and what each device has for it.
at::Tensor product_composed(Product which, const at::Tensor& a, const at::Tensor& b);
void add_product_composed(at::Tensor& sum, Product which, const at::Tensor& a, const at::Tensor& b);
extern DeviceTable<decltype(product_composed)> product_table;
extern DeviceTable<decltype(add_product_composed)> add_product_table;

// On the CPU, by this provider.
at::Tensor product(Product which, const at::Tensor& a, const at::Tensor& b, Provider provider);

}  // namespace attnres
