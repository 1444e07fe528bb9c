// Products of few rows, y = x W^T, which take as long as W comes from memory: it is read once, as
// it is stored, by all threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attnres/ops/packed_weight/kernel.h"

namespace attnres {

// x [M, K] float32 and W's rows 0 .. N - 1 give [M, N] float32. Sums are float32; with quantized
// weights x is rounded to int8 numbers, 32 of which share a scale, and multiplied in whole numbers.
at::Tensor streaming_product(const at::Tensor& x_MK, const kernel::PackedRows& weight, int64_t N);

}  // namespace attnres
