// The same as decode-inl.h in registers, for AVX2 and AVX-512: what has been stored in parts cannot
// be loaded as a whole before it is in the cache. Included once per instruction set, after
// hwy/highway.h.
#if defined(ATTNRES_OPS_PACKED_WEIGHT_DECODE_X86_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_OPS_PACKED_WEIGHT_DECODE_X86_INL_H_
#undef ATTNRES_OPS_PACKED_WEIGHT_DECODE_X86_INL_H_
#else
#define ATTNRES_OPS_PACKED_WEIGHT_DECODE_X86_INL_H_
#endif

#include <cstdint>
#include <cstring>

#include "attnres/ops/packed_weight/decode-inl.h"
#include "hwy/highway.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

// Of 256 numbers each 32 as bytes without sign, and the scales and offsets of each eight groups of
// 16 (Piece), those of groups 0, 2, 4 and 6 before those of 1, 3, 5 and 7: a group's products are
// half of a vector.
struct Units {
  __m256i numbers[8];
  __m256 scales[2], offsets[2];
};

HWY_INLINE __m256i load_32(const uint8_t* bytes) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bytes));
}

template <class Word>
HWY_INLINE Word word_at(const void* bytes) {
  Word word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// The bits of `kMask` of each byte, after it was moved down by kDown (or up, where that is
// negative) bits.
template <int kDown, int kMask>
HWY_INLINE __m256i bits_of(__m256i bytes) {
  const __m256i mask = _mm256_set1_epi8(kMask);
  if constexpr (kDown >= 0) return _mm256_and_si256(_mm256_srli_epi16(bytes, kDown), mask);
  return _mm256_and_si256(_mm256_slli_epi16(bytes, kDown < 0 ? -kDown : 0), mask);
}

// Lower, then upper nibbles of 16 bytes.
HWY_INLINE __m256i nibbles_of_16(const uint8_t* bytes) {
  const __m128i pairs = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m256i both =
      _mm256_inserti128_si256(_mm256_castsi128_si256(pairs), _mm_srli_epi16(pairs, 4), 1);
  return _mm256_and_si256(both, _mm256_set1_epi8(15));
}

// 16 for each of 32 bits that is set.
HWY_INLINE __m256i fifth_bits(const uint8_t* bits) {
  const __m256i bytes =
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i masks = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201));
  const __m256i all = _mm256_set1_epi32(word_at<int32_t>(bits));
  const __m256i one = _mm256_and_si256(_mm256_shuffle_epi8(all, bytes), masks);
  return _mm256_and_si256(_mm256_cmpeq_epi8(one, masks), _mm256_set1_epi8(16));
}

// Nibbles to the numbers of a table, larger by 2^kExcess.
template <int kExcess>
HWY_INLINE __m256i look_up_32(const std::array<int8_t, 16>& table, __m256i nibbles) {
  const __m128i numbers = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(&table)),
                                       _mm_set1_epi8(static_cast<char>(1 << kExcess)));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(numbers), nibbles);
}

// d times sixteen whole numbers.
HWY_INLINE void scale_bytes(float d, __m128i small, __m256* to) {
  const __m128i order = _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
  const __m256 all = _mm256_set1_ps(d);
  small = _mm_shuffle_epi8(small, order);
  to[0] = _mm256_mul_ps(all, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(small)));
  to[1] = _mm256_mul_ps(all, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(small, 8))));
}

// Eight numbers, each for two groups.
HWY_INLINE void each_twice(__m256 eight, __m256* to) {
  to[0] = _mm256_permute2f128_ps(eight, eight, 0);
  to[1] = _mm256_permute2f128_ps(eight, eight, 0x11);
}

// d times eight whole numbers, less `excess`, each for two groups.
HWY_INLINE void scale_pairs_of(float d, uint64_t small, int excess, __m256* to) {
  const __m128i eight = _mm_sub_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(small)),
                                     _mm_set1_epi8(static_cast<char>(excess)));
  const __m256 numbers = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eight));
  each_twice(_mm256_mul_ps(_mm256_set1_ps(d), numbers), to);
}

// The float16 numbers at `at` of eight blocks, each for two groups.
template <int64_t kBytes>
HWY_INLINE void halves_of_eight(const uint8_t* at, __m256* to) {
  const auto four_from = [&](int b) {
    const auto half = [&](int i) { return uint64_t{word_at<uint16_t>(at + (b + i) * kBytes)}; };
    const uint64_t all = half(0) | half(1) << 16 | half(2) << 32 | half(3) << 48;
    const __m128 numbers = _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(all)));
    return _mm256_set_m128(numbers, numbers);
  };
  to[0] = four_from(0);
  to[1] = four_from(4);
}

template <WeightFormat kFormat>
HWY_INLINE __m256i numbers_of_block(const uint8_t* block) {
  if constexpr (kFormat == WeightFormat::q8_0) {
    return _mm256_xor_si256(load_32(block + 2), _mm256_set1_epi8(-128));
  } else if constexpr (kFormat == WeightFormat::q4_0) {
    return nibbles_of_16(block + 2);
  } else if constexpr (kFormat == WeightFormat::q4_1) {
    return nibbles_of_16(block + 4);
  } else if constexpr (kFormat == WeightFormat::q5_0) {
    return _mm256_or_si256(nibbles_of_16(block + 6), fifth_bits(block + 2));
  } else if constexpr (kFormat == WeightFormat::q5_1) {
    return _mm256_or_si256(nibbles_of_16(block + 8), fifth_bits(block + 4));
  } else if constexpr (kFormat == WeightFormat::iq4_nl) {
    return look_up_32<7>(kIq4Numbers, nibbles_of_16(block + 2));
  } else {
    static_assert(kFormat == WeightFormat::mxfp4);
    return look_up_32<4>(kE2m1Numbers, nibbles_of_16(block + 1));
  }
}

template <WeightFormat kFormat>
HWY_INLINE void decode_eight_blocks(const uint8_t* bytes, Units& units) {
  constexpr int64_t kBytes = blocks_of(kFormat).bytes;
  for (int b = 0; b < 8; ++b) units.numbers[b] = numbers_of_block<kFormat>(bytes + b * kBytes);
  if constexpr (kFormat == WeightFormat::mxfp4) {
    const auto power = [&](int i) { return half_of_power(bytes[i * kBytes]); };
    each_twice(_mm256_setr_ps(power(0), power(1), power(2), power(3), power(4), power(5), power(6),
                              power(7)),
               units.scales);
  } else {
    halves_of_eight<kBytes>(bytes, units.scales);
  }
  if constexpr (has_offsets<kFormat>()) halves_of_eight<kBytes>(bytes + 2, units.offsets);
}

// Numbers 128 half + 32 j on: bits 2j and 2j + 1 of 32 bytes.
template <int j>
HWY_INLINE __m256i pair_of_bits(const uint8_t* bytes, int half) {
  return bits_of<2 * j, 3>(load_32(bytes + 32 * half));
}

HWY_INLINE void decode_q2_units(const uint8_t* block, Units& units) {
  const __m128i small = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block));
  const __m128i mask = _mm_set1_epi8(15);
  scale_bytes(half_at(block + 80), _mm_and_si128(small, mask), units.scales);
  scale_bytes(-half_at(block + 82), _mm_and_si128(_mm_srli_epi16(small, 4), mask), units.offsets);
  for (int half = 0; half < 2; ++half) {
    __m256i* numbers = units.numbers + 4 * half;
    numbers[0] = pair_of_bits<0>(block + 16, half);
    numbers[1] = pair_of_bits<1>(block + 16, half);
    numbers[2] = pair_of_bits<2>(block + 16, half);
    numbers[3] = pair_of_bits<3>(block + 16, half);
  }
}

HWY_INLINE void decode_q3_units(const uint8_t* block, Units& units) {
  const auto packed = word_at<uint64_t>(block + 96);
  const uint64_t upper = word_at<uint32_t>(block + 104), pairs = 0x03030303;
  const uint64_t nibbles = 0x0f0f0f0f0f0f0f0f;
  const uint64_t first = (packed & nibbles) | (upper & pairs) << 4 | (upper >> 2 & pairs) << 36;
  const uint64_t last =
      (packed >> 4 & nibbles) | (upper >> 4 & pairs) << 4 | (upper >> 6 & pairs) << 36;
  const __m128i small = _mm_set_epi64x(static_cast<int64_t>(last), static_cast<int64_t>(first));
  scale_bytes(half_at(block + 108), _mm_sub_epi8(small, _mm_set1_epi8(32)), units.scales);
  const __m256i third = load_32(block);
  const uint8_t* bytes = block + 32;
  units.numbers[0] = _mm256_or_si256(pair_of_bits<0>(bytes, 0), bits_of<-2, 4>(third));
  units.numbers[1] = _mm256_or_si256(pair_of_bits<1>(bytes, 0), bits_of<-1, 4>(third));
  units.numbers[2] = _mm256_or_si256(pair_of_bits<2>(bytes, 0), bits_of<0, 4>(third));
  units.numbers[3] = _mm256_or_si256(pair_of_bits<3>(bytes, 0), bits_of<1, 4>(third));
  units.numbers[4] = _mm256_or_si256(pair_of_bits<0>(bytes, 1), bits_of<2, 4>(third));
  units.numbers[5] = _mm256_or_si256(pair_of_bits<1>(bytes, 1), bits_of<3, 4>(third));
  units.numbers[6] = _mm256_or_si256(pair_of_bits<2>(bytes, 1), bits_of<4, 4>(third));
  units.numbers[7] = _mm256_or_si256(pair_of_bits<3>(bytes, 1), bits_of<5, 4>(third));
}

// The scales and offsets of q4_K and q5_K, of six bits each.
HWY_INLINE void decode_six_bits_units(const uint8_t* block, Units& units) {
  const uint64_t a = word_at<uint32_t>(block + 4), b = word_at<uint32_t>(block + 8);
  const uint64_t c = word_at<uint32_t>(block + 12);
  const uint64_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
  const uint64_t scales = (a & six) | ((c & four) | (a >> 6 & two) << 4) << 32;
  const uint64_t offsets = (b & six) | ((c >> 4 & four) | (b >> 6 & two) << 4) << 32;
  scale_pairs_of(half_at(block), scales, 0, units.scales);
  scale_pairs_of(-half_at(block + 2), offsets, 0, units.offsets);
}

HWY_INLINE void decode_q4_units(const uint8_t* block, Units& units) {
  decode_six_bits_units(block, units);
  for (int part = 0; part < 4; ++part) {
    const __m256i pairs = load_32(block + 16 + 32 * part);
    units.numbers[2 * part] = bits_of<0, 15>(pairs);
    units.numbers[2 * part + 1] = bits_of<4, 15>(pairs);
  }
}

template <int part>
HWY_INLINE void decode_q5_part(const uint8_t* block, __m256i fifth, Units& units) {
  const __m256i pairs = load_32(block + 48 + 32 * part);
  units.numbers[2 * part] =
      _mm256_or_si256(bits_of<0, 15>(pairs), bits_of<2 * part - 4, 16>(fifth));
  units.numbers[2 * part + 1] =
      _mm256_or_si256(bits_of<4, 15>(pairs), bits_of<2 * part - 3, 16>(fifth));
}

HWY_INLINE void decode_q5_units(const uint8_t* block, Units& units) {
  decode_six_bits_units(block, units);
  const __m256i fifth = load_32(block + 16);
  decode_q5_part<0>(block, fifth, units);
  decode_q5_part<1>(block, fifth, units);
  decode_q5_part<2>(block, fifth, units);
  decode_q5_part<3>(block, fifth, units);
}

HWY_INLINE void decode_q6_units(const uint8_t* block, Units& units) {
  const auto* small = reinterpret_cast<const __m128i*>(block + 192);
  scale_bytes(half_at(block + 208), _mm_loadu_si128(small), units.scales);
  for (int half = 0; half < 2; ++half) {
    const __m256i first = load_32(block + 64 * half), second = load_32(block + 64 * half + 32);
    const __m256i upper = load_32(block + 128 + 32 * half);
    __m256i* numbers = units.numbers + 4 * half;
    numbers[0] = _mm256_or_si256(bits_of<0, 15>(first), bits_of<-4, 48>(upper));
    numbers[1] = _mm256_or_si256(bits_of<0, 15>(second), bits_of<-2, 48>(upper));
    numbers[2] = _mm256_or_si256(bits_of<4, 15>(first), bits_of<0, 48>(upper));
    numbers[3] = _mm256_or_si256(bits_of<4, 15>(second), bits_of<2, 48>(upper));
  }
}

HWY_INLINE void decode_iq4_xs_units(const uint8_t* block, Units& units) {
  // Eight nibbles, and eight pairs of bits, to a byte each.
  uint64_t lower = word_at<uint32_t>(block + 4), upper = word_at<uint16_t>(block + 2);
  lower = (lower | lower << 16) & 0x0000ffff0000ffff;
  lower = (lower | lower << 8) & 0x00ff00ff00ff00ff;
  lower = (lower | lower << 4) & 0x0f0f0f0f0f0f0f0f;
  upper = (upper | upper << 24) & 0x000000ff000000ff;
  upper = (upper | upper << 12) & 0x000f000f000f000f;
  upper = (upper | upper << 6) & 0x0303030303030303;
  scale_pairs_of(half_at(block), lower | upper << 4, 32, units.scales);
  for (int j = 0; j < 8; ++j) {
    units.numbers[j] = look_up_32<7>(kIq4Numbers, nibbles_of_16(block + 8 + 16 * j));
  }
}

template <WeightFormat kFormat>
HWY_INLINE void decode_stored_units(const uint8_t* bytes, int64_t columns, Units& units) {
  if constexpr (blocks_of(kFormat).numbers == 32) {
    if (columns == kPiece) return decode_eight_blocks<kFormat>(bytes, units);
    uint8_t last[packed_row_bytes(kFormat, kPiece)] = {};
    std::memcpy(last, bytes, packed_row_bytes(kFormat, columns));
    decode_eight_blocks<kFormat>(last, units);
  } else if constexpr (kFormat == WeightFormat::q2_K) {
    decode_q2_units(bytes, units);
  } else if constexpr (kFormat == WeightFormat::q3_K) {
    decode_q3_units(bytes, units);
  } else if constexpr (kFormat == WeightFormat::q4_K) {
    decode_q4_units(bytes, units);
  } else if constexpr (kFormat == WeightFormat::q5_K) {
    decode_q5_units(bytes, units);
  } else if constexpr (kFormat == WeightFormat::q6_K) {
    decode_q6_units(bytes, units);
  } else {
    static_assert(kFormat == WeightFormat::iq4_xs);
    decode_iq4_xs_units(bytes, units);
  }
}

// As decode: what is missing of 256 numbers has scales and offsets of zero. A format without
// offsets gets what its bytes are larger by.
template <WeightFormat kFormat>
HWY_INLINE void decode_units(const uint8_t* bytes, int64_t columns, Units& units) {
  decode_stored_units<kFormat>(bytes, columns, units);
  if constexpr (has_offsets<kFormat>()) return;
  const __m256 excess = _mm256_set1_ps(-static_cast<float>(1 << excess_bits<kFormat>()));
  for (int half = 0; half < 2; ++half) {
    units.offsets[half] = _mm256_mul_ps(units.scales[half], excess);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // AVX2 and AVX-512
#endif  // per target
