// Rows of maps whose outputs rotary positions turn in pairs. Here the channels of a pair lie in two
// halves (c and c + pairs), in some files side by side (2c and 2c + 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace attnres {

// Each head has `before` rows that stay, then those of the pairs.
struct PairedRows {
  int64_t heads, before, pairs;

  // Both take a matrix, rows of bytes, or a vector.
  at::Tensor side_by_side(const at::Tensor& rows) const;
  at::Tensor in_halves(const at::Tensor& rows) const;  // from side by side
};

}  // namespace attnres
