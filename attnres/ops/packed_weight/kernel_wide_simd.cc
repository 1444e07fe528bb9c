#include <algorithm>
#include <cstring>

#include "attnres/ops/packed_weight/kernel_wide.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/packed_weight/kernel_wide_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/packed_weight/decode_x86-inl.h"
#include "attnres/ops/packed_weight/thin_product-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// What a row of a tile has besides numbers: sums of 16 each, then of all 32.
struct TileSums {
  float values[kWideRows];         // of numbers times scale
  int32_t corrections[kWideRows];  // of numbers times -128
};

// 32 numbers of each row of a tile.
struct alignas(64) TileBlock {
  int8_t numbers[kWideRows][32];
  float scales[kWideRows];
  TileSums sums[3];
};

// 32 numbers of each row of a panel as bytes without sign, four of every row side by side.
struct alignas(64) PanelBlock {
  uint8_t numbers[8][kWideRows][4];
  float scales[2][kWideRows], offsets[2][kWideRows];  // of 16 numbers each, or the first of all
};

// Groups of numbers in a block that have scales of their own.
template <WeightFormat kFormat>
constexpr int groups_of_block() {
  switch (kFormat) {
    case WeightFormat::q2_K:
    case WeightFormat::q3_K:
    case WeightFormat::q6_K:
      return 2;
    default:
      return 1;
  }
}

// Rows beyond the last are zero.
HWY_INLINE void fill_tile(const float* x, int64_t rows, int64_t columns, uint8_t* tile) {
  const __m256i ones = _mm256_set1_epi8(1);
  auto* block = reinterpret_cast<TileBlock*>(tile);
  for (int64_t k = 0; k < columns; k += 32, ++block) {
    if (rows < kWideRows) std::memset(block, 0, sizeof(*block));
    for (int64_t m = 0; m < rows; ++m) {
      const float scale = quantize_block(x + m * columns + k, block->numbers[m]);
      const __m256i all = _mm256_load_si256(reinterpret_cast<const __m256i*>(block->numbers[m]));
      // Of four numbers each, then of eight and of sixteen.
      __m256i sums = _mm256_madd_epi16(_mm256_maddubs_epi16(ones, all), _mm256_set1_epi16(1));
      sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0x4e));
      sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32(sums, 0xb1));
      const int32_t first = _mm256_extract_epi32(sums, 0), second = _mm256_extract_epi32(sums, 4);
      const int32_t of_groups[] = {first, second, first + second};
      for (int g = 0; g < 3; ++g) {
        block->sums[g].values[m] = scale * static_cast<float>(of_groups[g]);
        block->sums[g].corrections[m] = -128 * of_groups[g];
      }
      block->scales[m] = scale;
    }
  }
}

// Rows n to n + 15 of W: the last again where there are fewer. Bytes are larger than numbers of
// formats without offsets, by 128 where kEvenExcess, else by what the format says.
template <WeightFormat kFormat, bool kEvenExcess>
HWY_INLINE void fill_panel(const PackedRows& weight, int64_t n, int64_t last, uint8_t* panel) {
  auto* blocks = reinterpret_cast<PanelBlock*>(panel);
  for (int64_t r = 0; r < kWideRows; ++r) {
    const uint8_t* row = weight.row(std::min(n + r, last - 1));
    for (int64_t k = 0; k < weight.columns; k += kPiece) {
      const int64_t count = std::min(kPiece, weight.columns - k);
      Units units;
      decode_units<kFormat>(row + packed_row_bytes(kFormat, k), count, units);
      const auto* scales = reinterpret_cast<const float*>(units.scales);
      const auto* offsets = reinterpret_cast<const float*>(units.offsets);
      for (int64_t b = 0; b < count / 32; ++b) {
        PanelBlock& block = blocks[k / 32 + b];
        alignas(32) uint8_t numbers[8][4];
        __m256i bytes = units.numbers[b];
        if constexpr (kEvenExcess && !has_offsets<kFormat>()) {
          constexpr int kMore = 128 - (1 << excess_bits<kFormat>());
          bytes = _mm256_add_epi8(bytes, _mm256_set1_epi8(kMore));
        }
        _mm256_store_si256(reinterpret_cast<__m256i*>(numbers), bytes);
        for (int i = 0; i < 8; ++i) std::memcpy(block.numbers[i][r], numbers[i], 4);
        for (int g = 0; g < groups_of_block<kFormat>(); ++g) {
          block.scales[g][r] = scales[place_of_group(2 * b + g)];
          block.offsets[g][r] = offsets[place_of_group(2 * b + g)];
        }
      }
    }
  }
}

#if HWY_TARGET == HWY_AVX3
// Results of M rows of a tile, [M, kWideRows].
template <int M, int kGroups, bool kHasOffsets>
ATTNRES_VNNI void multiply_vnni(const uint8_t* panel, const uint8_t* tile, int64_t columns,
                                float* y) {
  constexpr int kSteps = 8 / kGroups;
  const auto* weights = reinterpret_cast<const PanelBlock*>(panel);
  const auto* x = reinterpret_cast<const TileBlock*>(tile);
  __m512 sums[M];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t k = 0; k < columns; k += 32, ++weights, ++x) {
    for (int g = 0; g < kGroups; ++g) {
      __m512i w[kSteps];
      for (int i = 0; i < kSteps; ++i) w[i] = _mm512_load_si512(weights->numbers[kSteps * g + i]);
      const __m512 scales = _mm512_load_ps(weights->scales[g]);
      const __m512 offsets = _mm512_load_ps(weights->offsets[g]);
      const TileSums& of_x = x->sums[kGroups == 1 ? 2 : g];
      for (int m = 0; m < M; ++m) {
        const int8_t* numbers = x->numbers[m] + 4 * kSteps * g;
        __m512i dots = _mm512_set1_epi32(kHasOffsets ? 0 : of_x.corrections[m]);
        for (int i = 0; i < kSteps; ++i) {
          dots =
              _mm512_dpbusd_epi32(dots, w[i], _mm512_set1_epi32(word_at<int32_t>(numbers + 4 * i)));
        }
        if constexpr (kHasOffsets) {
          sums[m] = _mm512_fmadd_ps(offsets, _mm512_set1_ps(of_x.values[m]), sums[m]);
        }
        const __m512 scale = _mm512_mul_ps(scales, _mm512_set1_ps(x->scales[m]));
        sums[m] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), scale, sums[m]);
      }
    }
  }
  for (int m = 0; m < M; ++m) _mm512_store_ps(y + m * kWideRows, sums[m]);
}
#endif

// Products of bytes without sign and such with one, sums of which stay in 16 bits.
template <WeightFormat kFormat>
constexpr int steps_in_words() {
  switch (kFormat) {
    case WeightFormat::q8_0:
    case WeightFormat::iq4_nl:
    case WeightFormat::iq4_xs:
      return 1;  // of magnitudes: x gets their signs
    case WeightFormat::q6_K:
      return 2;
    default:
      return 4;
  }
}

// Results of four rows of a tile and eight of a panel.
template <WeightFormat kFormat>
HWY_NOINLINE void multiply_pairs(const uint8_t* panel, const uint8_t* tile, int64_t m, int64_t n,
                                 int64_t columns, float* y) {
  constexpr int M = 4, kGroups = groups_of_block<kFormat>(), kSteps = 8 / kGroups;
  constexpr int kInWords = std::min(kSteps, steps_in_words<kFormat>());
  constexpr bool kHasSigns = kInWords == 1, kHasOffsets = has_offsets<kFormat>();
  const auto* weights = reinterpret_cast<const PanelBlock*>(panel);
  const auto* x = reinterpret_cast<const TileBlock*>(tile);
  __m256 sums[M];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t k = 0; k < columns; k += 32, ++weights, ++x) {
    for (int g = 0; g < kGroups; ++g) {
      __m256i dots[M];
      for (__m256i& dot : dots) dot = _mm256_setzero_si256();
      for (int begin = kSteps * g; begin < kSteps * (g + 1); begin += kInWords) {
        __m256i words[M];
        for (int i = begin; i < begin + kInWords; ++i) {
          const __m256i w =
              _mm256_load_si256(reinterpret_cast<const __m256i*>(weights->numbers[i][n]));
          const __m256i own = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
          const __m256i magnitude = _mm256_abs_epi8(own);
          for (int j = 0; j < M; ++j) {
            const __m256i four = _mm256_set1_epi32(word_at<int32_t>(x->numbers[m + j] + 4 * i));
            const __m256i pairs = kHasSigns
                                      ? _mm256_maddubs_epi16(magnitude, _mm256_sign_epi8(four, own))
                                      : _mm256_maddubs_epi16(w, four);
            words[j] = i == begin ? pairs : _mm256_add_epi16(words[j], pairs);
          }
        }
        for (int j = 0; j < M; ++j) {
          dots[j] = _mm256_add_epi32(dots[j], _mm256_madd_epi16(words[j], _mm256_set1_epi16(1)));
        }
      }
      const TileSums& of_x = x->sums[kGroups == 1 ? 2 : g];
      const __m256 scales = _mm256_load_ps(weights->scales[g] + n);
      for (int j = 0; j < M; ++j) {
        if constexpr (kHasOffsets) {
          sums[j] = _mm256_fmadd_ps(_mm256_load_ps(weights->offsets[g] + n),
                                    _mm256_set1_ps(of_x.values[m + j]), sums[j]);
        } else if constexpr (!kHasSigns) {
          const __m256i correction = _mm256_set1_epi32(of_x.corrections[m + j]);
          dots[j] =
              _mm256_add_epi32(dots[j], _mm256_srai_epi32(correction, 7 - excess_bits<kFormat>()));
        }
        const __m256 scale = _mm256_mul_ps(scales, _mm256_set1_ps(x->scales[m + j]));
        sums[j] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[j]), scale, sums[j]);
      }
    }
  }
  for (int j = 0; j < M; ++j) _mm256_store_ps(y + (m + j) * kWideRows + n, sums[j]);
}

// A panel by all tiles.
template <class Multiply>
HWY_INLINE void multiply_panel(const WideProduct& op, int64_t n, int64_t last,
                               const Multiply& multiply) {
  const int64_t count = std::min(kWideRows, last - n);
  const int64_t tile_bytes = op.weight.columns / 32 * static_cast<int64_t>(sizeof(TileBlock));
  const uint8_t* tile = op.tiles;
  for (int64_t m = 0; m < op.rows; m += kWideRows, tile += tile_bytes) {
    const int64_t rows = std::min(kWideRows, op.rows - m);
    alignas(64) float y[kWideRows * kWideRows];
    multiply(tile, rows, y);
    for (int64_t i = 0; i < rows; ++i) {
      std::copy(y + i * kWideRows, y + i * kWideRows + count, op.y + (m + i) * op.outputs + n);
    }
  }
}

#if HWY_TARGET == HWY_AVX3
template <WeightFormat kFormat>
HWY_INLINE void multiply_panel_vnni(const WideProduct& op, int64_t n, int64_t last,
                                    const uint8_t* panel) {
  constexpr int kGroups = groups_of_block<kFormat>();
  constexpr bool kHasOffsets = has_offsets<kFormat>();
  multiply_panel(op, n, last, [&](const uint8_t* tile, int64_t rows, float* y) {
    const auto multiply = rows > 12  ? multiply_vnni<16, kGroups, kHasOffsets>
                          : rows > 8 ? multiply_vnni<12, kGroups, kHasOffsets>
                          : rows > 4 ? multiply_vnni<8, kGroups, kHasOffsets>
                                     : multiply_vnni<4, kGroups, kHasOffsets>;
    multiply(panel, tile, op.weight.columns, y);
  });
}
#endif

template <WeightFormat kFormat>
HWY_INLINE void multiply_wide(const WideProduct& op, int64_t first, int64_t last, uint8_t* panel) {
  for (int64_t n = first; n < last; n += kWideRows) {
#if HWY_TARGET == HWY_AVX3
    if (has_vnni()) {
      fill_panel<kFormat, /*kEvenExcess=*/true>(op.weight, n, last, panel);
      multiply_panel_vnni<kFormat>(op, n, last, panel);
      continue;
    }
#endif
    fill_panel<kFormat, /*kEvenExcess=*/false>(op.weight, n, last, panel);
    multiply_panel(op, n, last, [&](const uint8_t* tile, int64_t rows, float* y) {
      for (int64_t m = 0; m < rows; m += 4) {
        multiply_pairs<kFormat>(panel, tile, m, 0, op.weight.columns, y);
        multiply_pairs<kFormat>(panel, tile, m, 8, op.weight.columns, y);
      }
    });
  }
}

bool has_wide_products_here() {
  return true;
}

int64_t tile_block_bytes_here() {
  return sizeof(TileBlock);
}
int64_t panel_block_bytes_here() {
  return sizeof(PanelBlock);
}

void fill_wide_tile_here(const float* x, int64_t rows, int64_t columns, uint8_t* tile) {
  fill_tile(x, rows, columns, tile);
}

void wide_product_here(const WideProduct& op, int64_t first, int64_t last, uint8_t* panel) {
  by_format(
      op.weight.format, []<class>() {},
      [&]<WeightFormat kFormat>() { multiply_wide<kFormat>(op, first, last, panel); }, [] {});
}

#else

bool has_wide_products_here() {
  return false;
}
int64_t tile_block_bytes_here() {
  return 0;
}
int64_t panel_block_bytes_here() {
  return 0;
}
void fill_wide_tile_here(const float*, int64_t, int64_t, uint8_t*) {}
void wide_product_here(const WideProduct&, int64_t, int64_t, uint8_t*) {}

#endif

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

HWY_EXPORT(has_wide_products_here);
HWY_EXPORT(tile_block_bytes_here);
HWY_EXPORT(panel_block_bytes_here);
HWY_EXPORT(fill_wide_tile_here);
HWY_EXPORT(wide_product_here);

bool has_wide_products() {
  return HWY_DYNAMIC_DISPATCH(has_wide_products_here)();
}

int64_t wide_tile_bytes(int64_t columns) {
  return columns / 32 * HWY_DYNAMIC_DISPATCH(tile_block_bytes_here)();
}

int64_t wide_panel_bytes(int64_t columns) {
  return columns / 32 * HWY_DYNAMIC_DISPATCH(panel_block_bytes_here)();
}

void fill_wide_tile(const float* x, int64_t rows, int64_t columns, uint8_t* tile) {
  HWY_DYNAMIC_DISPATCH(fill_wide_tile_here)(x, rows, columns, tile);
}

void wide_product(const WideProduct& op, int64_t first, int64_t last, uint8_t* panel) {
  HWY_DYNAMIC_DISPATCH(wide_product_here)(op, first, last, panel);
}

}  // namespace attnres::kernel
#endif
