// Weights packed for inference: storing numbers in a format, and reading them back. ops/matmul
// multiplies with them.
#pragma once

#include <ATen/core/Tensor.h>

#include "attnres/ops/device_table.h"
#include "attnres/parameters/packed_matrix.h"

namespace attnres {

// Stores numbers [..., K] of any dtype in `weight`, which has their shape and is in the CPU's
// memory, rounded as pack_rows.h says. Throws Error where they are not finite in its format, and on
// formats that are only read.
void pack_weight(const at::Tensor& values, const PackedMatrix& weight);
// In memory of its own. Throws Error also where K is no multiple of the format's blocks.
PackedMatrix pack_weight(const at::Tensor& values, WeightFormat format);

// Whether all its numbers are: of one in the CPU's memory.
bool has_finite_numbers(const PackedMatrix& weight);

// The numbers that it stands for, float32 [..., N, K].
at::Tensor unpack_weight(const PackedMatrix& weight);

// The same composed of tensor operations, and what each device has for it.
at::Tensor unpack_weight_composed(const PackedMatrix& weight);
extern DeviceTable<decltype(unpack_weight_composed)> unpack_weight_table;

}  // namespace attnres
