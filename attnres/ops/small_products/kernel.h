// Operands of small products, arranged. Raw pointers, no tensor library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// A matrix whose rows lie `stride` numbers apart.
template <class Storage>
struct MatrixRows {
  const Storage* data;
  int64_t stride, rows, columns;
};

// to[c to_stride + r] = from[r stride + c].
void transpose(const MatrixRows<float>& from, float* to, int64_t to_stride);
void transpose(const MatrixRows<BFloat16>& from, BFloat16* to, int64_t to_stride);

// to[r/2][c][r mod 2] = from[r][c]: [(rows + 1) / 2, columns, 2]; zeros beside a last odd row.
void pair_rows(const MatrixRows<BFloat16>& from, BFloat16* to);

// The transposed matrix with its rows in pairs: to[c/2][r][c mod 2] = from[r][c], pairs of
// `to_columns` columns. Two numbers are read as one: columns and stride are even, and `from` is
// aligned to four bytes.
void transpose_in_pairs(const MatrixRows<BFloat16>& from, BFloat16* to, int64_t to_columns);

}  // namespace attnres::kernel
