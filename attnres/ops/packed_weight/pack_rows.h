// Rounding rows of numbers to the formats in which weights are stored. Raw pointers, no tensor
// library, the same on every processor.
#pragma once

#include <cstdint>

#include "attnres/parameters/weight_format.h"

namespace attnres::kernel {

// Stores rows of float numbers, which are finite, in a format that `is_packed_here`. Rounded are
//   f16, bf16  to the nearest, ties to even
//   q8_0       d = max |x| / 127, q = x / d to the nearest, halves away from zero, as ggml does
//   q4_0       d = m / -8, m the number of largest magnitude, q = min(15, floor(x / d + 8.5)), as
//              ggml does; q5_0 the same with 16, 31 and 16.5
//   q4_1       d = (M - m) / 15, m the least and M the largest number, q = floor((x - m) / d +
//   0.5),
//              as ggml does; q5_1 the same with 31
//   q4_K, q5_K each 32 numbers to a scale and an offset of at most zero, of 20 pairs the one with
//              the least squared error, where a number x counts as rms + |x|; then scales and
//              offsets to six bits, and q to the nearest with these
//   q6_K       each 16 numbers to a scale, of 19 the one with the least squared error, where x
//              counts as x^2; then scales to int8, and q to the nearest with these
void pack_rows(const float* from, int64_t rows, int64_t columns, WeightFormat format, uint8_t* to);

}  // namespace attnres::kernel
