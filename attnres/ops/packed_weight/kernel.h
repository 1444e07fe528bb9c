// Products of a few rows with a packed weight, y = x W^T, which read W once and are as fast as it
// comes from memory. Raw pointers, no tensor library, no threads of their own.
#pragma once

#include <cstdint>

#include "attnres/parameters/weight_format.h"

namespace attnres::kernel {

// W [N, K].
struct PackedRows {
  const uint8_t* data = nullptr;
  WeightFormat format = WeightFormat::f32;
  int64_t columns = 0;  // K

  const uint8_t* row(int64_t n) const { return data + n * packed_row_bytes(format, columns); }
};

// Rows `first` to `last` as floats: to [last - first, K]. Bit for bit what ggml makes of them.
void unpack_rows(const PackedRows& from, int64_t first, int64_t last, float* to);

// Products with quantized weights go through so many numbers at a time.
inline constexpr int64_t kPiece = 256;

// A row x of K numbers as those products take it: blocks of 32, each rounded to int8 numbers q with
// a float scale, x = d q, d = max |x| / 127. Zeros follow up to a multiple of kPiece.
struct QuantizedRow {
  const int8_t* numbers = nullptr;  // [K]
  const float* scales = nullptr;    // [K / 32]
  const float* sums = nullptr;      // [K / 16]: of 16 numbers' d q, in the instruction set's order
};
inline constexpr int64_t quantized_row_bytes(int64_t columns) {
  const int64_t padded = (columns + kPiece - 1) / kPiece * kPiece;
  return (padded + padded / 16 * 4 + padded / 32 * 4 + 63) / 64 * 64;
}
// Into memory of as many bytes, aligned to 64, as are numbers and sums.
QuantizedRow quantize_row(const float* x, int64_t columns, uint8_t* memory);

inline constexpr int64_t kMostThinRows = 8;

struct ThinProduct {
  PackedRows weight;
  int64_t rows = 0;                       // M, 1 to kMostThinRows
  const float* x[kMostThinRows] = {};     // [K] each, where the weight is not quantized
  QuantizedRow quantized[kMostThinRows];  // where it is
  float* y[kMostThinRows] = {};           // [N] each
};

// y[m][n] of the rows n = first .. last - 1 of W. Sums are float32, in an order that depends on K
// and the instruction set alone: a row of x has the same result whatever rows are beside it.
void thin_product(const ThinProduct& op, int64_t first, int64_t last);

}  // namespace attnres::kernel
