#include <cstdint>

#include "attnres/ops/small_products/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/small_products/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Transposes numbers of any kind, as bits: the parts that fill no square one by one.
template <class Bits>
HWY_INLINE void transpose_rest(const Bits* from, int64_t stride, int64_t first_row, int64_t rows,
                               int64_t first_column, int64_t columns, Bits* to, int64_t to_stride) {
  for (int64_t r = first_row; r < rows; ++r) {
    for (int64_t c = first_column; c < columns; ++c) to[c * to_stride + r] = from[r * stride + c];
  }
}

#if HWY_TARGET == HWY_SCALAR

template <class Bits>
HWY_INLINE void transpose_bits(const Bits* from, int64_t stride, int64_t rows, int64_t columns,
                               Bits* to, int64_t to_stride) {
  transpose_rest(from, stride, 0, rows, 0, columns, to, to_stride);
}

#else

// Squares that fill vectors of 128 bits: N = 4 of 32 bits, or 8 of 16. Each step interleaves rows
// that lie N / 2 apart; after log2 N of them rows are columns.
template <class Bits>
HWY_INLINE void transpose_bits(const Bits* from, int64_t stride, int64_t rows, int64_t columns,
                               Bits* to, int64_t to_stride) {
  const hn::Full128<Bits> d;
  constexpr int64_t N = 16 / sizeof(Bits);
  using V = hn::Vec<decltype(d)>;
  const int64_t whole_rows = rows / N * N, whole_columns = columns / N * N;
  for (int64_t r = 0; r < whole_rows; r += N) {
    for (int64_t c = 0; c < whole_columns; c += N) {
      V v[N], w[N];
      for (int64_t i = 0; i < N; ++i) v[i] = hn::LoadU(d, from + (r + i) * stride + c);
      for (int64_t step = 1; step < N; step *= 2) {
        for (int64_t i = 0; i < N / 2; ++i) {
          w[2 * i] = hn::InterleaveLower(d, v[i], v[i + N / 2]);
          w[2 * i + 1] = hn::InterleaveUpper(d, v[i], v[i + N / 2]);
        }
        for (int64_t i = 0; i < N; ++i) v[i] = w[i];
      }
      for (int64_t i = 0; i < N; ++i) hn::StoreU(v[i], d, to + (c + i) * to_stride + r);
    }
  }
  transpose_rest(from, stride, 0, whole_rows, whole_columns, columns, to, to_stride);
  transpose_rest(from, stride, whole_rows, rows, 0, columns, to, to_stride);
}

#endif

void transpose_32(const uint32_t* from, int64_t stride, int64_t rows, int64_t columns, uint32_t* to,
                  int64_t to_stride) {
  transpose_bits(from, stride, rows, columns, to, to_stride);
}

void transpose_16(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns, uint16_t* to,
                  int64_t to_stride) {
  transpose_bits(from, stride, rows, columns, to, to_stride);
}

void pair_rows_16(const uint16_t* from, int64_t stride, int64_t rows, int64_t columns,
                  uint16_t* to) {
  for (int64_t r = 0; r < rows; r += 2) {
    const uint16_t *a = from + r * stride, *b = r + 1 < rows ? a + stride : nullptr;
    uint16_t* pairs = to + r * columns;
    int64_t c = 0;
#if HWY_TARGET != HWY_SCALAR
    const hn::Full128<uint16_t> d;
    for (constexpr int64_t N = 8; c + N <= columns; c += N) {
      const auto va = hn::LoadU(d, a + c), vb = b == nullptr ? hn::Zero(d) : hn::LoadU(d, b + c);
      hn::StoreU(hn::InterleaveLower(d, va, vb), d, pairs + 2 * c);
      hn::StoreU(hn::InterleaveUpper(d, va, vb), d, pairs + 2 * c + N);
    }
#endif
    for (; c < columns; ++c) {
      pairs[2 * c] = a[c];
      pairs[2 * c + 1] = b == nullptr ? 0 : b[c];
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

HWY_EXPORT(transpose_32);
HWY_EXPORT(transpose_16);
HWY_EXPORT(pair_rows_16);

namespace {

template <class Bits, class Storage>
const Bits* bits(const Storage* data) {
  return reinterpret_cast<const Bits*>(data);
}
template <class Bits, class Storage>
Bits* bits(Storage* data) {
  return reinterpret_cast<Bits*>(data);
}

}  // namespace

void transpose(const MatrixRows<float>& from, float* to, int64_t to_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_32)
  (bits<uint32_t>(from.data), from.stride, from.rows, from.columns, bits<uint32_t>(to), to_stride);
}

void transpose(const MatrixRows<BFloat16>& from, BFloat16* to, int64_t to_stride) {
  HWY_DYNAMIC_DISPATCH(transpose_16)
  (bits<uint16_t>(from.data), from.stride, from.rows, from.columns, bits<uint16_t>(to), to_stride);
}

void pair_rows(const MatrixRows<BFloat16>& from, BFloat16* to) {
  HWY_DYNAMIC_DISPATCH(pair_rows_16)
  (bits<uint16_t>(from.data), from.stride, from.rows, from.columns, bits<uint16_t>(to));
}

// Pairs of columns are numbers of 32 bits.
void transpose_in_pairs(const MatrixRows<BFloat16>& from, BFloat16* to, int64_t to_columns) {
  HWY_DYNAMIC_DISPATCH(transpose_32)
  (bits<uint32_t>(from.data), from.stride / 2, from.rows, from.columns / 2, bits<uint32_t>(to),
   to_columns);
}

}  // namespace attnres::kernel
#endif  // HWY_ONCE
