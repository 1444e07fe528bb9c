// Rotary position embedding of heads, half-split. Raw pointers, no tensor library, no threads of
// its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// Every head (a, b) of token t, each K/2 channels, gives
//   y = (a cos_t - b sin_t, b cos_t + a sin_t)
template <class Storage>
struct Rotary {
  using T = Compute<Storage>;
  int64_t num_tokens;      // T of a sequence; row i of x is its token i mod T
  int64_t heads, half;     // H and K/2
  const T *cosine, *sine;  // [T, K/2]
  const Storage* x;        // [rows, H, K]
  Storage* y;
};

// Rows [first, last).
ATTNRES_DECLARE(rotary, Rotary)

}  // namespace attnres::kernel
