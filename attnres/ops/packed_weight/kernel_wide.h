// Products of many rows with a quantized weight, y = x W^T, in whole numbers: for AVX2 and AVX-512.
// Raw pointers, no tensor library, no threads of their own.
#pragma once

#include <cstdint>

#include "attnres/ops/packed_weight/kernel.h"

namespace attnres::kernel {

// Rows of x are quantized as QuantizedRow says, in tiles of so many, and rows of W decoded in
// panels of as many. Sums are float32, in an order that depends on K and the instruction set alone.
inline constexpr int64_t kWideRows = 16;

// Whether this processor has them.
bool has_wide_products();

// Bytes of a tile and of a panel of K numbers a row, which are aligned to 64.
int64_t wide_tile_bytes(int64_t columns);
int64_t wide_panel_bytes(int64_t columns);

// Up to kWideRows rows of x [rows, K] to a tile.
void fill_wide_tile(const float* x, int64_t rows, int64_t columns, uint8_t* tile);

struct WideProduct {
  PackedRows weight;
  const uint8_t* tiles = nullptr;  // of all rows of x, one after another
  int64_t rows = 0;                // M
  float* y = nullptr;              // [M, N]
  int64_t outputs = 0;             // N
};

// y[m][n] of the rows n = first .. last - 1 of W, with the caller's memory for a panel.
void wide_product(const WideProduct& op, int64_t first, int64_t last, uint8_t* panel);

}  // namespace attnres::kernel
