// A matrix, or a stack of them, stored for inference (ops/packed_weight computes with it).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "attnres/parameters/weight_format.h"

namespace attnres {

// [..., N, K], of which `bytes` [..., N, packed_row_bytes(format, K)] are the rows.
struct PackedMatrix {
  at::Tensor bytes = {};
  WeightFormat format = WeightFormat::f32;
  int64_t columns = 0;  // K

  bool defined() const { return bytes.defined(); }
};

}  // namespace attnres
