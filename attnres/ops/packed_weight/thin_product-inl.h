// Included once per instruction set, after hwy/highway.h.
#if defined(ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_
#undef ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_
#else
#define ATTNRES_OPS_PACKED_WEIGHT_THIN_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstdint>

#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/simd-inl.h"
#include "attnres/ops/storage.h"
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

// A block is longer than what this reads.
HWY_INLINE float scale_of(const uint8_t* block) {
  return hn::GetLane(load(hn::CappedTag<float, 4>(), reinterpret_cast<const Half*>(block)));
}

// A loop that the compiler makes vectors of.
HWY_INLINE void unpack_block(WeightFormat format, const uint8_t* block, float* to) {
  const float scale = scale_of(block);
  const uint8_t* bytes = block + 2;
  if (format == WeightFormat::q8_0) {
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

#else

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

#if HWY_TARGET == HWY_AVX3

#define ATTNRES_VNNI __attribute__((target("avx512vnni")))

// A block's 32 numbers of W without sign, each larger by 128 (q8_0) or 8 (q4_0).
template <WeightFormat kFormat>
HWY_INLINE __m256i unsigned_numbers(const uint8_t* block) {
  if constexpr (kFormat == WeightFormat::q8_0) {
    const __m256i numbers = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 2));
    return _mm256_xor_si256(numbers, _mm256_set1_epi8(-128));
  } else {
    const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 2));
    const __m256i both =
        _mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1);
    return _mm256_and_si256(both, _mm256_set1_epi8(15));
  }
}

// The same as multiply_blocks by instructions that multiply four numbers at once, of which the
// weight's has no sign: what that adds is taken away by the sums of x.
template <int M, int R, WeightFormat kFormat>
ATTNRES_VNNI void multiply_blocks_vnni(const ThinProduct& op, int64_t n) {
  constexpr int kShift = kFormat == WeightFormat::q8_0 ? 7 : 3;
  const uint8_t* blocks[R];
  for (int r = 0; r < R; ++r) blocks[r] = op.weight.row(n + r);
  __m256 sums[M][R];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm256_setzero_ps();
  }
  for (int64_t k = 0; k < op.weight.columns; k += kPackedBlock) {
    __m256i weights[R];
    __m256 scales[R];
    for (int r = 0; r < R; ++r) {
      weights[r] = unsigned_numbers<kFormat>(blocks[r]);
      scales[r] = _mm256_set1_ps(scale_of(blocks[r]));
      blocks[r] += packed_unit_bytes(kFormat);
    }
    for (int m = 0; m < M; ++m) {
      const QuantizedRow& row = op.quantized[m];
      const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.numbers + k));
      const __m256i excess = _mm256_slli_epi32(
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(row.sums + k / 4)), kShift);
      const __m256i start = _mm256_sub_epi32(_mm256_setzero_si256(), excess);
      const __m256 scale = _mm256_set1_ps(row.scales[k / kPackedBlock]);
      for (int r = 0; r < R; ++r) {
        const __m256 dots = _mm256_cvtepi32_ps(_mm256_dpbusd_epi32(start, weights[r], x));
        sums[m][r] = _mm256_fmadd_ps(_mm256_mul_ps(dots, scale), scales[r], sums[m][r]);
      }
    }
  }
  const hn::Full256<float> d;
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) {
      op.y[m][n + r] = hn::GetLane(hn::SumOfLanes(d, hn::Vec256<float>{sums[m][r]}));
    }
  }
}

HWY_INLINE bool has_vnni() {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
}

#else

template <int M, int R, WeightFormat kFormat>
HWY_INLINE void multiply_blocks_vnni(const ThinProduct&, int64_t) {}

HWY_INLINE bool has_vnni() {
  return false;
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

template <int M>
HWY_INLINE void multiply_rows(const ThinProduct& op, int64_t first, int64_t last) {
  const auto plain = [&]<class Storage>() {
    for_each_rows<M>(first, last, [&]<int R>(int64_t n) { multiply_plain<M, R, Storage>(op, n); });
  };
  const auto blocks = [&]<WeightFormat kFormat>() {
    if (has_vnni()) {
      for_each_rows<M>(first, last,
                       [&]<int R>(int64_t n) { multiply_blocks_vnni<M, R, kFormat>(op, n); });
    } else {
      for_each_rows<M>(first, last,
                       [&]<int R>(int64_t n) { multiply_blocks<M, R, kFormat>(op, n); });
    }
  };
  switch (op.weight.format) {
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
  const auto plain = [&]<class Storage>() {
    for_each_vector(d, from.columns, [&](size_t k, auto part) {
      store(d, load(d, reinterpret_cast<const Storage*>(row) + k, part), to + k, part);
    });
  };
  switch (from.format) {
    case WeightFormat::f32:
      return plain.template operator()<float>();
    case WeightFormat::f16:
      return plain.template operator()<Half>();
    case WeightFormat::bf16:
      return plain.template operator()<BFloat16>();
    case WeightFormat::q8_0:
    case WeightFormat::q4_0:
      for (int64_t k = 0; k < from.columns; k += kPackedBlock) {
        unpack_block(from.format, row, to + k);
        row += packed_unit_bytes(from.format);
      }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
