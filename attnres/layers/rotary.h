// Rotary position embedding (Su et al., arXiv 2104.09864) in the half-split layout of Llama:
// channel c < D/2 of a head is paired with channel c + D/2 and turned by position * theta^(-2c/D).
#pragma once

#include <ATen/core/Tensor.h>

namespace attnres {

struct RotaryTable {
  at::Tensor cosine, sine;  // [T, 1, D/2]
};

// The angles of positions position .. position + tokens - 1, computed in float64.
RotaryTable make_rotary_table(int64_t position, int64_t tokens, int64_t head_width, double theta,
                              at::ScalarType dtype);

// x_BTHD, turned. Works for any number of heads.
at::Tensor apply_rotary(const at::Tensor& x_BTHD, const RotaryTable& table);

}  // namespace attnres
