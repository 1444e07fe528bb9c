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

#include "attnres/ops/packed_weight/decode-inl.h"
#include "attnres/ops/packed_weight/decode_x86-inl.h"
#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/simd-inl.h"
#include "attnres/ops/storage.h"
#include "hwy/cache_control.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// To int8 numbers, to the nearest, ties to even. Returns the scale: NaN where a number is not
// finite.
HWY_INLINE float quantize_block(const float* x, int8_t* to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<int8_t, decltype(d)> d8;
  const hn::Rebind<int32_t, decltype(d)> bits;
  const size_t lanes = hn::Lanes(d);
  // Magnitudes are ordered as their bits are, which have NaN as the largest; Max of floats loses
  // it.
  auto largest = hn::Zero(bits);
  for (size_t i = 0; i < 32; i += lanes) {
    largest = hn::Max(largest, hn::BitCast(bits, hn::Abs(hn::LoadU(d, x + i))));
  }
  float scale = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(bits, largest))) / 127;
  scale += scale - scale;  // infinity becomes NaN
  const auto inverse = hn::Set(d, scale == 0 ? 0 : 1 / scale);
  for (size_t i = 0; i < 32; i += lanes) {
    const auto numbers = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), inverse));
    hn::StoreU(hn::DemoteTo(d8, numbers), d8, to + i);
  }
  return scale;
}

inline constexpr int64_t kFp8Block = blocks_of(WeightFormat::fp8).numbers;

// Where the sum of a row's 16 numbers is among QuantizedRow's.
constexpr int64_t place_of_group(int64_t group) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
  return group / 8 * 8 + group % 8 / 2 + group % 2 * 4;  // as Units has scales and offsets
#else
  return group;
#endif
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

// The numbers of a block of fp8 over 2^8 times its scale: E4M3 is float16 with a shorter exponent.
HWY_INLINE void read_fp8(const uint8_t* block, float* to) {
  const hn::CappedTag<float, 16> d;
  const hn::Rebind<uint8_t, decltype(d)> d8;
  const hn::Rebind<uint16_t, decltype(d)> d16;
  for (size_t i = 0; i < kFp8Block; i += hn::Lanes(d)) {
    const auto bits = hn::PromoteTo(d16, hn::LoadU(d8, block + 4 + i));
    const auto sign = hn::ShiftLeft<8>(hn::And(bits, hn::Set(d16, 128)));
    const auto half = hn::Or(sign, hn::ShiftLeft<7>(hn::And(bits, hn::Set(d16, 127))));
    hn::StoreU(hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, decltype(d)>(), half)), d,
               to + i);
  }
}
HWY_INLINE float scale_of_fp8(const uint8_t* block) {
  float scale;
  std::memcpy(&scale, block, sizeof(scale));
  return scale * 256;
}

// M rows of x times row n of W, whose blocks are floats in the meantime.
template <int M>
HWY_INLINE void multiply_row_of_fp8(const ThinProduct& op, int64_t n) {
  constexpr int kChains = M == 1 ? 4 : 1;  // sums that do not wait
  const hn::CappedTag<float, 16> d;
  constexpr int64_t kBytes = blocks_of(WeightFormat::fp8).bytes;
  const uint8_t* block = op.weight.row(n);
  hn::Vec<decltype(d)> sums[M];
  for (auto& sum : sums) sum = hn::Zero(d);
  for (int64_t k = 0; k < op.weight.columns; k += kFp8Block, block += kBytes) {
    alignas(64) float numbers[kFp8Block];
    read_fp8(block, numbers);
    const auto scale = hn::Set(d, scale_of_fp8(block));
    for (int m = 0; m < M; ++m) {
      hn::Vec<decltype(d)> of_block[kChains];
      for (auto& sum : of_block) sum = hn::Zero(d);
      for (size_t i = 0; i < kFp8Block; i += hn::Lanes(d)) {
        auto& sum = of_block[i / hn::Lanes(d) % kChains];
        sum = hn::MulAdd(hn::LoadU(d, op.x[m] + k + i), hn::LoadU(d, numbers + i), sum);
      }
      for (int c = 1; c < kChains; ++c) of_block[0] = hn::Add(of_block[0], of_block[c]);
      sums[m] = hn::MulAdd(of_block[0], scale, sums[m]);
    }
  }
  for (int m = 0; m < M; ++m) op.y[m][n] = hn::GetLane(hn::SumOfLanes(d, sums[m]));
}

// Sums over pieces of products with M rows of x. A lane of sums has the dot products of every so
// many numbers; which, depends on K and the instruction set alone.
#if HWY_TARGET == HWY_SCALAR

template <int M, int kExcess>
struct NumberSums {
  float sums[M] = {};

  HWY_INLINE void add(const Piece& piece, const QuantizedRow* rows, int64_t k) {
    for (int m = 0; m < M; ++m) add_row(m, piece, rows[m], k);
  }
  HWY_INLINE void add_row(int m, const Piece& piece, const QuantizedRow& row, int64_t k) {
    for (int64_t group = 0; group < kPiece / 16; ++group) {
      int32_t dot = 0;
      for (int64_t i = 16 * group; i < 16 * (group + 1); ++i) {
        dot += row.numbers[k + i] * (piece.numbers[i] - (kExcess < 0 ? 0 : 1 << kExcess));
      }
      sums[m] += static_cast<float>(dot) * (piece.scales[group] * row.scales[k / 32 + group / 2]);
      if (kExcess < 0) sums[m] += piece.offsets[group] * row.sums[k / 16 + group];
    }
  }
  HWY_INLINE float total(int m) const { return sums[m]; }
};

#elif HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

// The instruction multiplies bytes without sign by such with one, and keeps sums of two in 16 bits:
// where bytes are larger than 128 they get their sign back and give it to x.
template <int M, int kExcess>
struct UnitSums {
  static constexpr int kChains = M == 1 ? 4 : M == 2 ? 2 : 1;  // sums that do not wait
  static constexpr bool kHasSign = kExcess == 7;
  __m256 sums[M][kChains];

  HWY_INLINE UnitSums() {
    for (auto& row : sums) {
      for (__m256& sum : row) sum = _mm256_setzero_ps();
    }
  }

  // 128 numbers: as they are stored, or their magnitudes beside themselves.
  struct Half {
    __m256i weights[4], own[4];
    __m256 scales, offsets;
  };

  static HWY_INLINE Half half_of(const Units& units, int which) {
    Half half;
    half.scales = units.scales[which];
    half.offsets = units.offsets[which];
    for (int i = 0; i < 4; ++i) {
      half.weights[i] = units.numbers[4 * which + i];
      if constexpr (kHasSign) {
        half.own[i] = _mm256_xor_si256(half.weights[i], _mm256_set1_epi8(-128));
        half.weights[i] = _mm256_abs_epi8(half.own[i]);
      }
    }
    return half;
  }

  HWY_INLINE void add_half(int m, const Half& half, const QuantizedRow& row, int64_t k) {
    const __m256 of_x = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(row.scales + k / 32));
    const __m256 scales = _mm256_mul_ps(half.scales, of_x);
    const auto add = [&]<int i>() HWY_ATTR {
      __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(row.numbers + k + 32 * i));
      if constexpr (kHasSign) x = _mm256_sign_epi8(x, half.own[i]);
      const __m256i dots =
          _mm256_madd_epi16(_mm256_maddubs_epi16(half.weights[i], x), _mm256_set1_epi16(1));
      __m256& sum = sums[m][i % kChains];
      sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots), _mm256_permute_ps(scales, i * 0x55), sum);
    };
    add.template operator()<0>();
    add.template operator()<1>();
    add.template operator()<2>();
    add.template operator()<3>();
    if constexpr (!kHasSign) {
      __m256& sum = sums[m][kChains - 1];
      sum = _mm256_fmadd_ps(half.offsets, _mm256_load_ps(row.sums + k / 16), sum);
    }
  }

  HWY_INLINE void add(const Units& units, const QuantizedRow* rows, int64_t k) {
    for (int which = 0; which < 2; ++which) {
      const Half half = half_of(units, which);
      for (int m = 0; m < M; ++m) add_half(m, half, rows[m], k + 128 * which);
    }
  }

  HWY_INLINE float total(int m) const {
    __m256 sum = sums[m][0];
    for (int c = 1; c < kChains; ++c) sum = _mm256_add_ps(sum, sums[m][c]);
    const hn::Full256<float> d;
    return hn::GetLane(hn::SumOfLanes(d, hn::Vec256<float>{sum}));
  }
};

#else

template <int M, int kExcess>
struct PieceSums {
  static constexpr hn::CappedTag<int16_t, 8> kWords = {};
  static constexpr hn::RepartitionToWide<decltype(kWords)> kLongs = {};
  static constexpr hn::Rebind<float, decltype(kLongs)> kFloats = {};
  hn::Vec<hn::Rebind<float, hn::RepartitionToWide<hn::CappedTag<int16_t, 8>>>> sums[M];

  HWY_INLINE PieceSums() {
    for (auto& sum : sums) sum = hn::Zero(kFloats);
  }

  HWY_INLINE void add(const Piece& piece, const QuantizedRow* rows, int64_t k) {
    for (int m = 0; m < M; ++m) add_row(m, piece, rows[m], k);
  }
  HWY_INLINE void add_row(int m, const Piece& piece, const QuantizedRow& row, int64_t k) {
    const hn::Rebind<uint8_t, decltype(kWords)> bytes;
    const hn::Rebind<int8_t, decltype(kWords)> signed_bytes;
    const auto excess = hn::Set(kWords, kExcess < 0 ? 0 : 1 << kExcess);
    for (int64_t group = 0; group < kPiece / 16; ++group) {
      auto dots = hn::Zero(kLongs), more = hn::Zero(kLongs);
      for (int64_t i = 16 * group; i < 16 * (group + 1);
           i += static_cast<int64_t>(hn::Lanes(kWords))) {
        const auto weights =
            hn::Sub(hn::PromoteTo(kWords, hn::LoadU(bytes, piece.numbers + i)), excess);
        const auto x = hn::PromoteTo(kWords, hn::LoadU(signed_bytes, row.numbers + k + i));
        dots = hn::ReorderWidenMulAccumulate(kLongs, weights, x, dots, more);
      }
      const float scale = piece.scales[group] * row.scales[k / 32 + group / 2];
      sums[m] =
          hn::MulAdd(hn::ConvertTo(kFloats, hn::Add(dots, more)), hn::Set(kFloats, scale), sums[m]);
    }
    if constexpr (kExcess < 0) {
      for (int64_t group = 0; group < kPiece / 16;
           group += static_cast<int64_t>(hn::Lanes(kFloats))) {
        sums[m] = hn::MulAdd(hn::LoadU(kFloats, piece.offsets + group),
                             hn::LoadU(kFloats, row.sums + k / 16 + group), sums[m]);
      }
    }
  }

  HWY_INLINE float total(int m) const { return hn::GetLane(hn::SumOfLanes(kFloats, sums[m])); }
};

#endif

#if HWY_TARGET == HWY_AVX3

// Inlined where the caller is too, though it cannot be asked for: between them stands what has the
// target's instructions alone.
#define ATTNRES_VNNI __attribute__((target(HWY_TARGET_STR ",avx512vnni"))) inline

// By an instruction that multiplies and adds four numbers at once.
template <int M>
struct VnniSums {
  static constexpr int kChains = M == 1 ? 4 : M == 2 ? 2 : 1;  // sums that do not wait
  __m512 sums[M][kChains];

  ATTNRES_VNNI VnniSums() {
    for (auto& row : sums) {
      for (__m512& sum : row) sum = _mm512_setzero_ps();
    }
  }

  static ATTNRES_VNNI __m512 both(const __m256* halves) {
    return _mm512_insertf32x8(_mm512_castps256_ps512(halves[0]), halves[1], 1);
  }

  ATTNRES_VNNI void add_row(int m, const Units& units, const QuantizedRow& row, int64_t k) {
    const __m512 of_x =
        _mm512_permutexvar_ps(_mm512_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7, 4, 5, 6, 7),
                              _mm512_castps256_ps512(_mm256_load_ps(row.scales + k / 32)));
    const __m512 scales = _mm512_mul_ps(both(units.scales), of_x);
    for (int i = 0; i < 4; ++i) {
      const __m512i weights = _mm512_inserti64x4(_mm512_castsi256_si512(units.numbers[2 * i]),
                                                 units.numbers[2 * i + 1], 1);
      const __m512i dots = _mm512_dpbusd_epi32(_mm512_setzero_si512(), weights,
                                               _mm512_load_si512(row.numbers + k + 64 * i));
      // Four lanes a group.
      const __m512i groups =
          _mm512_add_epi32(_mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 1, 1, 1, 1, 5, 5, 5, 5),
                           _mm512_set1_epi32(i / 2 * 8 + i % 2 * 2));
      __m512& sum = sums[m][i % kChains];
      sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots), _mm512_permutexvar_ps(groups, scales), sum);
    }
    __m512& sum = sums[m][kChains - 1];
    sum = _mm512_fmadd_ps(both(units.offsets), _mm512_load_ps(row.sums + k / 16), sum);
  }

  ATTNRES_VNNI void add(const Units& units, const QuantizedRow* rows, int64_t k) {
    for (int m = 0; m < M; ++m) add_row(m, units, rows[m], k);
  }

  ATTNRES_VNNI float total(int m) const {
    __m512 sum = sums[m][0];
    for (int c = 1; c < kChains; ++c) sum = _mm512_add_ps(sum, sums[m][c]);
    return _mm512_reduce_add_ps(sum);
  }
};

HWY_INLINE bool has_vnni() {
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
}

#endif

// Goes along one row of W after another: a single stream from memory, which processors fetch ahead,
// as they don't fetch short pieces of several. So far ahead it is asked for besides.
inline constexpr int64_t kBytesAhead = 4096;

// M rows of x times row n of W.
template <int M, WeightFormat kFormat, class Sums>
HWY_INLINE void multiply_row_of_blocks(const ThinProduct& op, int64_t n) {
  constexpr int64_t kBytes = packed_row_bytes(kFormat, kPiece);
  const uint8_t* bytes = op.weight.row(n);
  Sums sums;
  for (int64_t k = 0; k < op.weight.columns; k += kPiece, bytes += kBytes) {
    for (int64_t ahead = 0; ahead < kBytes; ahead += 64) {
      hwy::Prefetch(bytes + kBytesAhead + ahead);
    }
    const int64_t count = std::min(kPiece, op.weight.columns - k);
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    Units numbers;
    decode_units<kFormat>(bytes, count, numbers);
#else
    Piece numbers;
    decode<kFormat>(bytes, count, numbers);
#endif
    sums.add(numbers, op.quantized, k);
  }
  for (int m = 0; m < M; ++m) op.y[m][n] = sums.total(m);
}

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

#if HWY_TARGET == HWY_AVX3
template <int M, WeightFormat kFormat>
ATTNRES_VNNI void multiply_row_vnni(const ThinProduct& op, int64_t n) {
  multiply_row_of_blocks<M, kFormat, VnniSums<M>>(op, n);
}
#endif

template <int M, WeightFormat kFormat>
HWY_INLINE void multiply_rows_of_blocks(const ThinProduct& op, int64_t first, int64_t last) {
#if HWY_TARGET == HWY_AVX3
  if (has_vnni()) {
    for (int64_t n = first; n < last; ++n) multiply_row_vnni<M, kFormat>(op, n);
    return;
  }
#endif
  for (int64_t n = first; n < last; ++n) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
    multiply_row_of_blocks<M, kFormat, UnitSums<M, excess_bits<kFormat>()>>(op, n);
#elif HWY_TARGET == HWY_SCALAR
    multiply_row_of_blocks<M, kFormat, NumberSums<M, excess_bits<kFormat>()>>(op, n);
#else
    multiply_row_of_blocks<M, kFormat, PieceSums<M, excess_bits<kFormat>()>>(op, n);
#endif
  }
}

// Calls plain<Storage>(), blocks<format>() or fp8().
template <class Plain, class Blocks, class Fp8>
HWY_INLINE void by_format(WeightFormat format, const Plain& plain, const Blocks& blocks,
                          const Fp8& fp8) {
  switch (format) {
    case WeightFormat::fp8:
      return fp8();
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
    case WeightFormat::q4_1:
      return blocks.template operator()<WeightFormat::q4_1>();
    case WeightFormat::q5_0:
      return blocks.template operator()<WeightFormat::q5_0>();
    case WeightFormat::q5_1:
      return blocks.template operator()<WeightFormat::q5_1>();
    case WeightFormat::q2_K:
      return blocks.template operator()<WeightFormat::q2_K>();
    case WeightFormat::q3_K:
      return blocks.template operator()<WeightFormat::q3_K>();
    case WeightFormat::q4_K:
      return blocks.template operator()<WeightFormat::q4_K>();
    case WeightFormat::q5_K:
      return blocks.template operator()<WeightFormat::q5_K>();
    case WeightFormat::q6_K:
      return blocks.template operator()<WeightFormat::q6_K>();
    case WeightFormat::iq4_nl:
      return blocks.template operator()<WeightFormat::iq4_nl>();
    case WeightFormat::iq4_xs:
      return blocks.template operator()<WeightFormat::iq4_xs>();
    case WeightFormat::mxfp4:
      return blocks.template operator()<WeightFormat::mxfp4>();
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
      [&]<WeightFormat kFormat>() { multiply_rows_of_blocks<M, kFormat>(op, first, last); },
      [&] {
        for (int64_t n = first; n < last; ++n) multiply_row_of_fp8<M>(op, n);
      });
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

// In two roundings, as ggml does: this is compiled without fusing them.
template <WeightFormat kFormat>
HWY_INLINE void unpack_piece(const Piece& piece, int64_t count, float* to) {
  constexpr int kExcess = excess_bits<kFormat>();
  for (int64_t group = 0; group < count / 16; ++group) {
    const float scale = piece.scales[group];
    for (int64_t i = 16 * group; i < 16 * (group + 1); ++i) {
      const int number = piece.numbers[i] - (kExcess < 0 ? 0 : 1 << kExcess);
      to[i] = scale * static_cast<float>(number);
      if constexpr (kExcess < 0) to[i] += piece.offsets[group];
    }
  }
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
        Piece piece;
        for (int64_t k = 0; k < from.columns; k += kPiece) {
          const int64_t count = std::min(kPiece, from.columns - k);
          decode<kFormat>(row + packed_row_bytes(kFormat, k), count, piece);
          unpack_piece<kFormat>(piece, count, to + k);
        }
      },
      [&] {
        for (int64_t k = 0; k < from.columns; k += kFp8Block) {
          const uint8_t* block = row + packed_row_bytes(WeightFormat::fp8, k);
          read_fp8(block, to + k);
          const float scale = scale_of_fp8(block);
          for (int64_t i = 0; i < kFp8Block; ++i) to[k + i] *= scale;
        }
      });
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
