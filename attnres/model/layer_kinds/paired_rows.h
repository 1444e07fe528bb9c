// Rows of maps whose outputs rotary positions turn in pairs. Here the channels of a pair lie in two
// halves (c and c + pairs), in some files side by side (2c and 2c + 1).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "attnres/model/layer_kind.h"

namespace attnres {

// Of each head `before` rows that stay, then those of the pairs.
struct PairedRows {
  int64_t heads, before, pairs;

  // Of a matrix, of rows of bytes, or of a vector.
  at::Tensor side_by_side(const at::Tensor& rows) const;
  at::Tensor in_halves(const at::Tensor& rows) const;  // back
};

// A map that the file holds with pairs side by side.
GgufPart side_by_side_part(const std::string& name, const std::string& role,
                           const PairedRows& rows);

}  // namespace attnres
