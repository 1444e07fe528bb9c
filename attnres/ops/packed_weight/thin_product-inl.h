// Included once per instruction set, after hwy/highway.h.
#if defined(ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_
#undef ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_
#else
#define ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/simd-inl.h"
#include "attnres/ops/storage.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// As stored.
struct Half {
  uint16_t bits;
};

template <class D>
HWY_INLINE hn::Vec<D> load(D d, const Half* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

template <class D>
HWY_INLINE hn::Vec<D> load_first(D d, const Half* from, size_t count) {
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = load_first(d16, reinterpret_cast<const uint16_t*>(from), count);
  return hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, D>(), bits));
}

// A block is longer than what this reads.
HWY_INLINE float scale_of(const uint8_t* block) {
  return hn::GetLane(load(hn::CappedTag<float, 4>(), reinterpret_cast<const Half*>(block)));
}

// A loop that the compiler makes vectors of.
template <WeightFormat kFormat>
HWY_INLINE void unpack_block(const uint8_t* block, float* to) {
  const float scale = scale_of(block);
  const uint8_t* bytes = block + 2;
  if constexpr (kFormat == WeightFormat::q8_0) {
    for (int64_t i = 0; i < kPackedBlock; ++i) to[i] = scale * static_cast<int8_t>(bytes[i]);
  } else {
    constexpr int64_t kHalf = kPackedBlock / 2;
    for (int64_t i = 0; i < kHalf; ++i) {
      to[i] = scale * static_cast<float>((bytes[i] & 15) - 8);
      to[i + kHalf] = scale * static_cast<float>((bytes[i] >> 4) - 8);
    }
  }
}

// To int8 numbers, to the nearest, ties to even. Returns the scale.
HWY_INLINE float quantize_block(const float* x, int8_t* to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const size_t lanes = hn::Lanes(d);
  auto largest = hn::Zero(d);
  for (size_t i = 0; i < kPackedBlock; i += lanes) {
    largest = hn::Max(largest, hn::Abs(hn::LoadU(d, x + i)));
  }
  const float scale = hn::GetLane(hn::MaxOfLanes(d, largest)) / 127;
  const auto inverse = hn::Set(d, scale == 0 ? 0 : 1 / scale);
  for (size_t i = 0; i < kPackedBlock; i += lanes) {
    const auto numbers = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
    hn::StoreU(hn::DemoteTo(d8, numbers), d8, to + i);
  }
  return scale;
}

// M rows of x times R rows of W, W's stored as they are.
template <int M, int R, class Storage>
HWY_INLINE void multiply_plain(const ThinProduct& op, int64_t n) {
  const hn::ScalableTag<float> d;
  const auto columns = static_cast<size_t>(op.weight.columns);
  const Storage* w[R];
  for (int r = 0; r < R; ++r) w[r] = reinterpret_cast<const Storage*>(op.weight.row(n + r));
  hn::Vec<decltype(d)> sums[M][R];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(d);
  }
  for_each_vector(d, columns, [&](size_t k, auto part) {
    hn::Vec<decltype(d)> weights[R];
    for (int r = 0; r < R; ++r) weights[r] = load(d, w[r] + k, part);
    for (int m = 0; m < M; ++m) {
      const auto x = load(d, op.x[m] + k, part);
      for (int r = 0; r < R; ++r) sums[m][r] = hn::MulAdd(x, weights[r], sums[m][r]);
    }
  });
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) {
      op.y[m][n + r] = hn::GetLane(hn::SumOfLanes(d, sums[m][r]));
    }
  }
}

#if HWY_TARGET == HWY_SCALAR

// The block's dot product in whole numbers.
template <WeightFormat kFormat>
HWY_INLINE int32_t dot_of_block(const uint8_t* block, const int8_t* x) {
  int32_t sum = 0;
  for (int64_t i = 0; i < kPackedBlock / 2; ++i) {
    const uint8_t* bytes = block + 2;
    if constexpr (kFormat == WeightFormat::q8_0) {
      sum += static_cast<int8_t>(bytes[i]) * x[i];
      sum += static_cast<int8_t>(bytes[i + 16]) * x[i + 16];
    } else {
      sum += ((bytes[i] & 15) - 8) * x[i] + ((bytes[i] >> 4) - 8) * x[i + 16];
    }
  }
  return sum;
}

template <int M, int R, WeightFormat kFormat>
HWY_INLINE void multiply_blocks(const ThinProduct& op, int64_t n) {
  for (int r = 0; r < R; ++r) {
    for (int m = 0; m < M; ++m) {
      const uint8_t* block = op.weight.row(n + r);
      float sum = 0;
      for (int64_t k = 0; k < op.weight.columns; k += kPackedBlock) {
        const auto dot =
            static_cast<float>(dot_of_block<kFormat>(block, op.quantized[m].numbers + k));
        sum += dot * op.quantized[m].scales[k / kPackedBlock] * scale_of(block);
        block += packed_unit_bytes(kFormat);
      }
      op.y[m][n + r] = sum;
    }
  }
}

#elif HWY_TARGET != HWY_AVX2 && HWY_TARGET != HWY_AVX3

// Numbers i, i + 1, ... of a block, as many as the vector has lanes, which divide 16.
template <WeightFormat kFormat, class D16>
HWY_INLINE hn::Vec<D16> numbers_of_block(D16 d, const uint8_t* block, size_t i) {
  if constexpr (kFormat == WeightFormat::q8_0) {
    const hn::Rebind<int8_t, D16> d8;
    return hn::PromoteTo(d, hn::LoadU(d8, reinterpret_cast<const int8_t*>(block + 2 + i)));
  } else {
    const hn::Rebind<uint8_t, D16> d8;
    const auto pairs = hn::PromoteTo(d, hn::LoadU(d8, block + 2 + i % 16));
    const auto nibbles = i < 16 ? hn::And(pairs, hn::Set(d, 15)) : hn::ShiftRight<4>(pairs);
    return hn::Sub(nibbles, hn::Set(d, 8));
  }
}

// M rows of x times R rows of W, in blocks: whole numbers within a block, float32 over blocks.
template <int M, int R, WeightFormat kFormat>
HWY_INLINE void multiply_blocks(const ThinProduct& op, int64_t n) {
  const hn::CappedTag<int16_t, 16> d16;
  const hn::RepartitionToWide<decltype(d16)> d32;
  const hn::Rebind<float, decltype(d32)> df;
  const hn::Rebind<int8_t, decltype(d16)> d8;
  constexpr size_t kLanes = hn::MaxLanes(d16), kVectors = kPackedBlock / kLanes;
  const uint8_t* blocks[R];
  for (int r = 0; r < R; ++r) blocks[r] = op.weight.row(n + r);
  hn::Vec<decltype(df)> sums[M][R];
  for (auto& row : sums) {
    for (auto& sum : row) sum = hn::Zero(df);
  }
  for (int64_t k = 0; k < op.weight.columns; k += kPackedBlock) {
    for (int r = 0; r < R; ++r) {
      hn::Vec<decltype(d16)> weights[kVectors];
      for (size_t v = 0; v < kVectors; ++v) {
        weights[v] = numbers_of_block<kFormat>(d16, blocks[r], v * kLanes);
      }
      const auto scale = hn::Set(df, scale_of(blocks[r]));
      for (int m = 0; m < M; ++m) {
        const QuantizedRow& row = op.quantized[m];
        auto dots = hn::Zero(d32), more = hn::Zero(d32);
        for (size_t v = 0; v < kVectors; ++v) {
          const auto x = hn::PromoteTo(d16, hn::LoadU(d8, row.numbers + k + v * kLanes));
          dots = hn::ReorderWidenMulAccumulate(d32, weights[v], x, dots, more);
        }
        const auto scaled = hn::Mul(hn::ConvertTo(df, hn::Add(dots, more)),
                                    hn::Set(df, row.scales[k / kPackedBlock]));
        sums[m][r] = hn::MulAdd(scaled, scale, sums[m][r]);
      }
      blocks[r] += packed_unit_bytes(kFormat);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) op.y[m][n + r] = hn::GetLane(hn::SumOfLanes(df, sums[m][r]));
  }
}

#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// x86 goes along one row of W after another: a single stream from memory, which processors fetch
// ahead, as they don't fetch short pieces of several. So far ahead it is asked for besides.
inline constexpr int64_t kBytesAhead = 4096;

// Four blocks of one row at a time: add(four, k) takes those that begin at column k. Of the last
// the missing ones are zero, as x is there.
template <WeightFormat kFormat, class F>
HWY_INLINE void for_each_step(const PackedRows& weight, int64_t n, const F& add) {
  constexpr int64_t kBytes = 4 * packed_unit_bytes(kFormat);
  const uint8_t* blocks = weight.row(n);
  int64_t k = 0;
  for (; k + kStep <= weight.columns; k += kStep, blocks += kBytes) {
    hwy::Prefetch(blocks + kBytesAhead);
    if (kBytes > 128) hwy::Prefetch(blocks + kBytesAhead + 64);
    add(blocks, k);
  }
  if (k == weight.columns) return;
  uint8_t last[kBytes] = {};
  std::memcpy(last, blocks, packed_row_bytes(kFormat, weight.columns - k));
  add(last, k);
}

// A block's 32 numbers: of q8_0 as they are, of q4_0 without sign, larger by 8.
template <WeightFormat kFormat>
HWY_INLINE __m256i block_bytes(const uint8_t* block) {
  if constexpr (kFormat == WeightFormat::q8_0) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2));
  } else {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
  }
}

// A block's dot products of four numbers each. The instruction multiplies bytes without sign by
// such with one, so that q8_0 gives its signs to x; a pair's sum, 2 * 128 * 127 at most, fits.
template <WeightFormat kFormat>
HWY_INLINE __m256 block_dots(__m256i weights, const QuantizedRow& row, int64_t k) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.numbers + k));
  const __m256i ones = _mm256_set1_epi16(1);
  if constexpr (kFormat == WeightFormat::q8_0) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8(weights), _mm256_sign_epi8(x, weights));
    return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, ones));
  } else {
    const __m256i start = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.starts + k / 4));
    const __m256i fours = _mm256_madd_epi16(_mm256_maddubs_epi16(weights, x), ones);
    return _mm256_cvtepi32_ps(_mm256_add_epi32(start, fours));
  }
}

// The scales of four blocks, twice.
template <WeightFormat kFormat>
HWY_INLINE __m256 scales_of_four_twice(const uint8_t* blocks) {
  constexpr int64_t kBytes = packed_unit_bytes(kFormat);
  const auto bits_of = [&](int i) {
    uint16_t bits;
    std::memcpy(&bits, blocks + i * kBytes, sizeof(bits));
    return static_cast<uint64_t>(bits) << 16 * i;
  };
  const uint64_t bits = bits_of(0) | bits_of(1) | bits_of(2) | bits_of(3);
  const __m128 scales = _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(bits)));
  return _mm256_set_m128(scales, scales);
}

// M rows of x times a row of W, in blocks: whole numbers within a block, float32 over blocks.
template <int M, WeightFormat kFormat>
HWY_INLINE void multiply_row_of_blocks(const ThinProduct& op, int64_t n) {
  constexpr int kChains = M == 1 ? 4 : M == 2 ? 2 : 1;  // as in dots: sums that do not wait
  const hn::Full256<float> d;
  __m256 sums[M][kChains];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm256_setzero_ps();
  }
  for_each_step<kFormat>(op.weight, n, [&](const uint8_t* blocks, int64_t k) HWY_ATTR {
    __m256i weights[4];
    for (int i = 0; i < 4; ++i) {
      weights[i] = block_bytes<kFormat>(blocks + i * packed_unit_bytes(kFormat));
    }
    const __m256 scales = scales_of_four_twice<kFormat>(blocks);
    for (int m = 0; m < M; ++m) {
      const QuantizedRow& row = op.quantized[m];
      const __m256 both = _mm256_mul_ps(
          scales,
          _mm256_broadcast_ps(reinterpret_cast<const __m128*>(row.scales + k / kPackedBlock)));
      const auto add = [&]<int i>() HWY_ATTR {
        __m256& sum = sums[m][i % kChains];
        sum = _mm256_fmadd_ps(block_dots<kFormat>(weights[i], row, k + i * kPackedBlock),
                              _mm256_permute_ps(both, i * 0x55), sum);
      };
      add.template operator()<0>();
      add.template operator()<1>();
      add.template operator()<2>();
      add.template operator()<3>();
    }
  });
  for (int m = 0; m < M; ++m) {
    __m256 sum = sums[m][0];
    for (int c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, sums[m][c]);
    op.y[m][n] = hn::GetLane(hn::SumOfLanes(d, hn::Vec256<float>{sum}));
  }
}

#endif

#if HWY_TARGET == HWY_AVX3

#define ATTNRES_VNNI __attribute__((target(HWY_TARGET_STR ",avx512vnni")))

// Two blocks' 64 numbers without sign, each larger by 128 (q8_0) or 8 (q4_0).
template <WeightFormat kFormat>
HWY_INLINE __m512i unsigned_numbers(const uint8_t* blocks) {
  const uint8_t *first = blocks + 2, *second = first + packed_unit_bytes(kFormat);
  if constexpr (kFormat == WeightFormat::q8_0) {
    const __m512i numbers = _mm512_inserti64x4(
        _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(first))),
        _mm256_loadu_si256(reinterpret_cast<const __m256i*>(second)), 1);
    return _mm512_xor_si512(numbers, _mm512_set1_epi8(-128));
  } else {
    // Each block's 16 bytes twice, and of the second time the upper four bits of each.
    const __m512i once =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
    const __m512i both = _mm512_mask_broadcast_i32x4(
        once, 0xff00, _mm_loadu_si128(reinterpret_cast<const __m128i*>(second)));
    const __m512i shifts = _mm512_maskz_set1_epi64(0xcc, 0x0004000400040004);
    return _mm512_and_si512(_mm512_srlv_epi16(both, shifts), _mm512_set1_epi8(15));
  }
}

// The scales of four blocks: words 0, 17, 34 and 51 (q8_0), or 0, 9, 18 and 27 (q4_0).
template <WeightFormat kFormat>
HWY_INLINE __m128 scales_of_four(const uint8_t* blocks) {
  const __m512i low = _mm512_loadu_si512(blocks);
  if constexpr (kFormat == WeightFormat::q8_0) {
    const __m512i words = _mm512_castsi128_si512(_mm_set_epi16(0, 0, 0, 0, 51, 34, 17, 0));
    const __m512i high = _mm512_loadu_si512(blocks + 64);
    return _mm_cvtph_ps(_mm512_castsi512_si128(_mm512_permutex2var_epi16(low, words, high)));
  } else {
    const __m512i words = _mm512_castsi128_si512(_mm_set_epi16(0, 0, 0, 0, 27, 18, 9, 0));
    return _mm_cvtph_ps(_mm512_castsi512_si128(_mm512_permutexvar_epi16(words, low)));
  }
}

// The same as multiply_row_of_blocks by an instruction that multiplies and adds four numbers at
// once, in two blocks together.
template <int M, WeightFormat kFormat>
ATTNRES_VNNI void multiply_row_vnni(const ThinProduct& op, int64_t n) {
  constexpr int64_t kPair = 2 * packed_unit_bytes(kFormat);
  // Which of four scales each lane takes.
  const __m512i lanes[2] = {_mm512_maskz_set1_epi32(0xff00, 1),
                            _mm512_mask_set1_epi32(_mm512_set1_epi32(2), 0xff00, 3)};
  __m512 sums[M][2];
  for (auto& row : sums) row[0] = row[1] = _mm512_setzero_ps();
  for_each_step<kFormat>(op.weight, n, [&](const uint8_t* blocks, int64_t k) ATTNRES_VNNI {
    const __m512i weights[2] = {unsigned_numbers<kFormat>(blocks),
                                unsigned_numbers<kFormat>(blocks + kPair)};
    const __m128 scales = scales_of_four<kFormat>(blocks);
    for (int m = 0; m < M; ++m) {
      const QuantizedRow& row = op.quantized[m];
      const __m512 both =
          _mm512_castps128_ps512(_mm_mul_ps(scales, _mm_loadu_ps(row.scales + k / kPackedBlock)));
      for (int i = 0; i < 2; ++i) {
        const int64_t at = k + 2 * kPackedBlock * i;
        const __m512i dots = _mm512_dpbusd_epi32(_mm512_loadu_si512(row.starts + at / 4),
                                                 weights[i], _mm512_loadu_si512(row.numbers + at));
        sums[m][i] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots),
                                     _mm512_permutexvar_ps(lanes[i], both), sums[m][i]);
      }
    }
  });
  const hn::Full512<float> d;
  for (int m = 0; m < M; ++m) {
    const hn::Vec512<float> sum{_mm512_add_ps(sums[m][0], sums[m][1])};
    op.y[m][n] = hn::GetLane(hn::SumOfLanes(d, sum));
  }
}

HWY_INLINE bool has_vnni() {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
}

#endif

// Sums that stay in registers, beside what they are of.
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_NEON
inline constexpr int kSums = 16;
#else
inline constexpr int kSums = 8;
#endif

// With a number of rows of W at a time that keeps sums in registers.
template <int M, class F>
HWY_INLINE void for_each_rows(int64_t first, int64_t last, const F& f) {
  constexpr int R = std::min(4, kSums / M);
  int64_t n = first;
  for (; n + R <= last; n += R) f.template operator()<R>(n);
  for (; n < last; ++n) f.template operator()<1>(n);
}

template <int M, WeightFormat kFormat>
HWY_INLINE void multiply_rows_of_blocks(const ThinProduct& op, int64_t first, int64_t last) {
#if HWY_TARGET == HWY_AVX3
  if (has_vnni()) {
    for (int64_t n = first; n < last; ++n) multiply_row_vnni<M, kFormat>(op, n);
    return;
  }
#endif
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  for (int64_t n = first; n < last; ++n) multiply_row_of_blocks<M, kFormat>(op, n);
#else
  for_each_rows<M>(first, last, [&]<int R>(int64_t n) { multiply_blocks<M, R, kFormat>(op, n); });
#endif
}

// Calls plain<Storage>() or blocks<format>().
template <class Plain, class Blocks>
HWY_INLINE void by_format(WeightFormat format, const Plain& plain, const Blocks& blocks) {
  switch (format) {
    case WeightFormat::f32:
      return plain.template operator()<float>();
    case WeightFormat::f16:
      return plain.template operator()<Half>();
    case WeightFormat::bf16:
      return plain.template operator()<BFloat16>();
    case WeightFormat::q8_0:
      return blocks.template operator()<WeightFormat::q8_0>();
    case WeightFormat::q4_0:
      return blocks.template operator()<WeightFormat::q4_0>();
  }
}

template <int M>
HWY_INLINE void multiply_rows(const ThinProduct& op, int64_t first, int64_t last) {
  by_format(
      op.weight.format,
      [&]<class Storage>() {
        for_each_rows<M>(first, last,
                         [&]<int R>(int64_t n) { multiply_plain<M, R, Storage>(op, n); });
      },
      [&]<WeightFormat kFormat>() { multiply_rows_of_blocks<M, kFormat>(op, first, last); });
}

// Compiled for 1, 2, 4 and 8 rows of x: where there are fewer, the last is computed again.
HWY_INLINE void multiply_thin(ThinProduct op, int64_t first, int64_t last) {
  for (int64_t m = op.rows; m < kMostThinRows; ++m) {
    op.x[m] = op.x[op.rows - 1];
    op.quantized[m] = op.quantized[op.rows - 1];
    op.y[m] = op.y[op.rows - 1];
  }
  if (op.rows == 1) return multiply_rows<1>(op, first, last);
  if (op.rows == 2) return multiply_rows<2>(op, first, last);
  if (op.rows <= 4) return multiply_rows<4>(op, first, last);
  multiply_rows<8>(op, first, last);
}

HWY_INLINE void unpack_row(const PackedRows& from, int64_t n, float* to) {
  const hn::ScalableTag<float> d;
  const uint8_t* row = from.row(n);
  by_format(
      from.format,
      [&]<class Storage>() {
        for_each_vector(d, from.columns, [&](size_t k, auto part) {
          store(d, load(d, reinterpret_cast<const Storage*>(row) + k, part), to + k, part);
        });
      },
      [&]<WeightFormat kFormat>() {
        for (int64_t k = 0; k < from.columns; k += kPackedBlock) {
          unpack_block<kFormat>(row, to + k);
          row += packed_unit_bytes(kFormat);
        }
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
