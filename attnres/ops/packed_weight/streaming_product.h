// Products of few rows, y = x W^T, which take as long as W comes from memory. On the CPU it is read
// once, as it is stored, by all threads.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "attnres/ops/device_table.h"
#include "attnres/parameters/packed_matrix.h"

namespace attnres {

// x [M, K] float32 and each W [N, K] give [M, N] float32, all contiguous on one device. The bytes
// of a W are [N, ..]: its numbers, float32 or bfloat16, or packed ones. Sums are float32; with
// quantized weights the CPU rounds x to int8 numbers, 32 of which share a scale, and multiplies in
// whole numbers.
std::vector<at::Tensor> streaming_products(const at::Tensor& x_MK,
                                           const std::vector<PackedMatrix>& weights);

// The same composed of tensor operations, and what each device has for it.
std::vector<at::Tensor> streaming_products_composed(const at::Tensor& x_MK,
                                                    const std::vector<PackedMatrix>& weights);
extern DeviceTable<decltype(streaming_products_composed)> streaming_products_table;

}  // namespace attnres
