// What a product reads of a quantized row at once: 256 numbers as bytes without sign, and what
// these stand for. Included once per instruction set, after hwy/highway.h.
#if defined(ATTNRES_OPS_PACKED_WEIGHT_DECODE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ATTNRES_OPS_PACKED_WEIGHT_DECODE_INL_H_
#undef ATTNRES_OPS_PACKED_WEIGHT_DECODE_INL_H_
#else
#define ATTNRES_OPS_PACKED_WEIGHT_DECODE_INL_H_
#endif

#include <array>
#include <cstdint>
#include <cstring>

#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/simd-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Numbers i = 0 .. 255 of a row: x = scales[i / 16] (numbers[i] - 2^kExcess) + offsets[i / 16].
struct Piece {
  alignas(64) uint8_t numbers[kPiece];
  alignas(64) float scales[kPiece / 16];
  alignas(64) float offsets[kPiece / 16];  // where the format has them
};

// log2 of what the bytes are larger by than the numbers.
template <WeightFormat kFormat>
constexpr int excess_bits() {
  switch (kFormat) {
    case WeightFormat::q8_0:
    case WeightFormat::iq4_nl:
    case WeightFormat::iq4_xs:
      return 7;
    case WeightFormat::q6_K:
      return 5;
    case WeightFormat::q5_0:
    case WeightFormat::mxfp4:
      return 4;
    case WeightFormat::q4_0:
      return 3;
    case WeightFormat::q3_K:
      return 2;
    default:
      return -1;  // none: it has offsets
  }
}
template <WeightFormat kFormat>
constexpr bool has_offsets() {
  return excess_bits<kFormat>() < 0;
}

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

HWY_INLINE float half_at(const uint8_t* bytes) {
  const hn::CappedTag<float, 1> d;
  uint16_t bits;
  std::memcpy(&bits, bytes, sizeof(bits));
  const auto half = hn::Set(hn::Rebind<uint16_t, decltype(d)>(), bits);
  return hn::GetLane(
      hn::PromoteTo(d, hn::BitCast(hn::Rebind<hwy::float16_t, decltype(d)>(), half)));
}

// 2^(e - 128), which for e of 0 and 1 is below the smallest normal number.
HWY_INLINE float half_of_power(uint32_t e) {
  const uint32_t bits = e < 2 ? uint32_t{0x200000} << e : (e - 1) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof(power));
  return power;
}

// Nibbles of kCount bytes: the lower ones, and after as many numbers the upper ones.
template <int kCount>
HWY_INLINE void split_nibbles(const uint8_t* bytes, uint8_t* to) {
  for (int i = 0; i < kCount; ++i) to[i] = bytes[i] & 15;
  for (int i = 0; i < kCount; ++i) to[kCount + i] = bytes[i] >> 4;
}

// Adds the i-th bit of 32 to the i-th of 32 numbers, as 16.
HWY_INLINE void add_fifth_bits(const uint8_t* bits, uint8_t* numbers) {
  for (int i = 0; i < 32; ++i) numbers[i] |= static_cast<uint8_t>((bits[i / 8] >> i % 8 & 1) << 4);
}

// Nibbles to the numbers of a table, larger by 2^excess.
template <int kCount>
HWY_INLINE void look_up(const std::array<int8_t, 16>& table, int excess, uint8_t* numbers) {
  for (int i = 0; i < kCount; ++i) {
    numbers[i] = static_cast<uint8_t>(table[numbers[i]] + (1 << excess));
  }
}

// Blocks of 32 numbers, of which the block is `b`-th of a piece.
template <WeightFormat kFormat>
HWY_INLINE void decode_block(const uint8_t* block, int b, Piece& piece) {
  uint8_t* numbers = piece.numbers + 32 * b;
  float scale = 0, offset = 0;
  if constexpr (kFormat == WeightFormat::mxfp4) {
    split_nibbles<16>(block + 1, numbers);
    look_up<32>(kE2m1Numbers, 4, numbers);
    scale = half_of_power(block[0]);
  } else {
    scale = half_at(block);
  }
  if constexpr (kFormat == WeightFormat::q8_0) {
    for (int i = 0; i < 32; ++i) numbers[i] = block[2 + i] ^ 128;
  } else if constexpr (kFormat == WeightFormat::q4_0) {
    split_nibbles<16>(block + 2, numbers);
  } else if constexpr (kFormat == WeightFormat::iq4_nl) {
    split_nibbles<16>(block + 2, numbers);
    look_up<32>(kIq4Numbers, 7, numbers);
  } else if constexpr (kFormat == WeightFormat::q4_1) {
    offset = half_at(block + 2);
    split_nibbles<16>(block + 4, numbers);
  } else if constexpr (kFormat == WeightFormat::q5_0) {
    split_nibbles<16>(block + 6, numbers);
    add_fifth_bits(block + 2, numbers);
  } else if constexpr (kFormat == WeightFormat::q5_1) {
    offset = half_at(block + 2);
    split_nibbles<16>(block + 8, numbers);
    add_fifth_bits(block + 4, numbers);
  }
  piece.scales[2 * b] = piece.scales[2 * b + 1] = scale;
  if constexpr (has_offsets<kFormat>()) piece.offsets[2 * b] = piece.offsets[2 * b + 1] = offset;
}

// The scales of sixteen groups, and offsets, from whole numbers of them.
HWY_INLINE void scale_all(float d, const uint8_t* small, int excess, float* scales) {
  for (int i = 0; i < 16; ++i) scales[i] = d * static_cast<float>(small[i] - excess);
}
// The same of eight, each of which two groups of 16 share.
HWY_INLINE void scale_pairs(float d, const uint8_t* small, int excess, float* scales) {
  for (int i = 0; i < 8; ++i) {
    scales[2 * i] = scales[2 * i + 1] = d * static_cast<float>(small[i] - excess);
  }
}

// Bits 2j and 2j + 1 of 32 bytes are numbers 32 j on, j = 0 .. 3.
HWY_INLINE void split_pairs_of_bits(const uint8_t* bytes, uint8_t* to) {
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 32; ++i) to[32 * j + i] = bytes[i] >> 2 * j & 3;
  }
}

HWY_INLINE void decode_q2(const uint8_t* block, Piece& piece) {
  const float d = half_at(block + 80), m = half_at(block + 82);
  uint8_t scales[16], offsets[16];
  for (int i = 0; i < 16; ++i) {
    scales[i] = block[i] & 15;
    offsets[i] = block[i] >> 4;
  }
  scale_all(d, scales, 0, piece.scales);
  scale_all(-m, offsets, 0, piece.offsets);
  for (int half = 0; half < 2; ++half) {
    split_pairs_of_bits(block + 16 + 32 * half, piece.numbers + 128 * half);
  }
}

HWY_INLINE void decode_q3(const uint8_t* block, Piece& piece) {
  const uint8_t* packed = block + 96;
  uint8_t scales[16];
  for (int i = 0; i < 8; ++i) {
    scales[i] = packed[i] & 15;
    scales[8 + i] = packed[i] >> 4;
  }
  for (int j = 0; j < 4; ++j) {
    for (int i = 0; i < 4; ++i) {
      scales[4 * j + i] |= static_cast<uint8_t>((packed[8 + i] >> 2 * j & 3) << 4);
    }
  }
  scale_all(half_at(block + 108), scales, 32, piece.scales);
  for (int half = 0; half < 2; ++half) {
    split_pairs_of_bits(block + 32 + 32 * half, piece.numbers + 128 * half);
  }
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      piece.numbers[32 * j + i] |= static_cast<uint8_t>((block[i] >> j & 1) << 2);
    }
  }
}

// The scales and offsets of q4_K and q5_K, of six bits each.
HWY_INLINE void decode_six_bits(const uint8_t* block, Piece& piece) {
  const uint8_t* packed = block + 4;
  uint8_t scales[8], offsets[8];
  for (int j = 0; j < 4; ++j) {
    scales[j] = packed[j] & 63;
    offsets[j] = packed[4 + j] & 63;
    scales[4 + j] = static_cast<uint8_t>((packed[8 + j] & 15) | packed[j] >> 6 << 4);
    offsets[4 + j] = static_cast<uint8_t>(packed[8 + j] >> 4 | packed[4 + j] >> 6 << 4);
  }
  scale_pairs(half_at(block), scales, 0, piece.scales);
  scale_pairs(-half_at(block + 2), offsets, 0, piece.offsets);
}

HWY_INLINE void decode_q4(const uint8_t* block, Piece& piece) {
  decode_six_bits(block, piece);
  for (int part = 0; part < 4; ++part) {
    split_nibbles<32>(block + 16 + 32 * part, piece.numbers + 64 * part);
  }
}

HWY_INLINE void decode_q5(const uint8_t* block, Piece& piece) {
  decode_six_bits(block, piece);
  for (int part = 0; part < 4; ++part) {
    split_nibbles<32>(block + 48 + 32 * part, piece.numbers + 64 * part);
  }
  for (int j = 0; j < 8; ++j) {
    for (int i = 0; i < 32; ++i) {
      piece.numbers[32 * j + i] |= static_cast<uint8_t>((block[16 + i] >> j & 1) << 4);
    }
  }
}

HWY_INLINE void decode_q6(const uint8_t* block, Piece& piece) {
  const float d = half_at(block + 208);
  for (int i = 0; i < 16; ++i) {
    piece.scales[i] = d * static_cast<float>(static_cast<int8_t>(block[192 + i]));
  }
  for (int half = 0; half < 2; ++half) {
    const uint8_t* upper = block + 128 + 32 * half;
    uint8_t* numbers = piece.numbers + 128 * half;
    split_nibbles<64>(block + 64 * half, numbers);
    for (int j = 0; j < 4; ++j) {
      for (int i = 0; i < 32; ++i) {
        numbers[32 * j + i] |= static_cast<uint8_t>((upper[i] >> 2 * j & 3) << 4);
      }
    }
  }
}

HWY_INLINE void decode_iq4_xs(const uint8_t* block, Piece& piece) {
  uint8_t scales[8];
  for (int j = 0; j < 8; ++j) {
    const int lower = block[4 + j / 2] >> 4 * (j % 2) & 15;
    scales[j] = static_cast<uint8_t>(lower | (block[2 + j / 4] >> 2 * (j % 4) & 3) << 4);
  }
  scale_pairs(half_at(block), scales, 32, piece.scales);
  for (int j = 0; j < 8; ++j) split_nibbles<16>(block + 8 + 16 * j, piece.numbers + 32 * j);
  look_up<kPiece>(kIq4Numbers, 7, piece.numbers);
}

// `columns` numbers, a piece at most. What is missing of one has scales and offsets of zero.
template <WeightFormat kFormat>
HWY_INLINE void decode(const uint8_t* bytes, int64_t columns, Piece& piece) {
  if constexpr (blocks_of(kFormat).numbers == 32) {
    const int count = static_cast<int>(columns / 32);
    if (count == 8) {
      for (int b = 0; b < 8; ++b) {
        decode_block<kFormat>(bytes + b * blocks_of(kFormat).bytes, b, piece);
      }
      return;
    }
    std::memset(&piece, 0, sizeof(piece));
    for (int b = 0; b < count; ++b) {
      decode_block<kFormat>(bytes + b * blocks_of(kFormat).bytes, b, piece);
    }
  } else if constexpr (kFormat == WeightFormat::q2_K) {
    decode_q2(bytes, piece);
  } else if constexpr (kFormat == WeightFormat::q3_K) {
    decode_q3(bytes, piece);
  } else if constexpr (kFormat == WeightFormat::q4_K) {
    decode_q4(bytes, piece);
  } else if constexpr (kFormat == WeightFormat::q5_K) {
    decode_q5(bytes, piece);
  } else if constexpr (kFormat == WeightFormat::q6_K) {
    decode_q6(bytes, piece);
  } else {
    static_assert(kFormat == WeightFormat::iq4_xs);
    decode_iq4_xs(bytes, piece);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#endif  // per target
