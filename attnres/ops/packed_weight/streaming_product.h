// Products of few rows, y = x W^T, which take as long as W comes from memory. On the CPU it is read
// once, as it is stored, by all threads.
#pragma once

#include <ATen/core/Tensor.h>

#include "attnres/ops/device_table.h"
#include "attnres/parameters/weight_format.h"

namespace attnres {

// x [M, K] float32 and W [N, K] give [M, N] float32, both contiguous on one device. `rows` [N, ..]
// are W's numbers, float32 or bfloat16, or the bytes of packed ones (packed_weight.h). Sums are
// float32; with quantized weights the CPU rounds x to int8 numbers, 32 of which share a scale, and
// multiplies in whole numbers.
at::Tensor streaming_product(const at::Tensor& x_MK, const at::Tensor& rows, WeightFormat format);

// The same composed of tensor operations, and what each device has for it.
at::Tensor streaming_product_composed(const at::Tensor& x_MK, const at::Tensor& rows,
                                      WeightFormat format);
extern DeviceTable<decltype(streaming_product_composed)> streaming_product_table;

}  // namespace attnres
