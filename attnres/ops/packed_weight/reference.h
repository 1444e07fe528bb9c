// What a packed row means, number by number, in double.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "attnres/parameters/weight_format.h"

namespace attnres::reference {

inline double half_value(const uint8_t* at) {
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double magnitude = exponent == 0    ? std::ldexp(fraction, -24)
                           : exponent == 31 ? (fraction == 0 ? INFINITY : NAN)
                                            : std::ldexp(1024 + fraction, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

// The i-th of 32 nibbles in 16 bytes.
inline int nibble(const uint8_t* bytes, int64_t i) {
  return i < 16 ? bytes[i] & 15 : bytes[i - 16] >> 4;
}

// The i-th bit of a row of bytes.
inline int bit(const uint8_t* bytes, int64_t i) {
  return bytes[i / 8] >> i % 8 & 1;
}

// Of blocks of 32 numbers, the i-th.
inline double value_of_32(WeightFormat format, const uint8_t* block, int64_t i) {
  switch (format) {
    case WeightFormat::q8_0:
      return half_value(block) * static_cast<int8_t>(block[2 + i]);
    case WeightFormat::q4_0:
      return half_value(block) * (nibble(block + 2, i) - 8);
    case WeightFormat::q4_1:
      return half_value(block) * nibble(block + 4, i) + half_value(block + 2);
    case WeightFormat::q5_0:
      return half_value(block) * (nibble(block + 6, i) + 16 * bit(block + 2, i) - 16);
    case WeightFormat::q5_1:
      return half_value(block) * (nibble(block + 8, i) + 16 * bit(block + 4, i)) +
             half_value(block + 2);
    case WeightFormat::iq4_nl:
      return half_value(block) * kIq4Numbers[nibble(block + 2, i)];
    case WeightFormat::mxfp4:
      return block[0] == 255 ? NAN : std::ldexp(kE2m1Numbers[nibble(block + 1, i)], block[0] - 128);
    default:
      return NAN;
  }
}

inline double e4m3_value(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  if (exponent == 15 && fraction == 7) return NAN;
  const double magnitude =
      exponent == 0 ? std::ldexp(fraction, -9) : std::ldexp(8 + fraction, exponent - 10);
  return bits >> 7 ? -magnitude : magnitude;
}

// The j-th of eight scales and of eight offsets, of 6 bits each, in 12 bytes: the first four in the
// lower bits of bytes 0 to 3 and 4 to 7; of the others the lower four bits are in bytes 8 to 11,
// and the upper two are the upper two of those bytes.
inline int scale_of_six_bits(const uint8_t* bytes, int64_t j) {
  return j < 4 ? bytes[j] & 63 : (bytes[j + 4] & 15) + 16 * (bytes[j - 4] >> 6);
}
inline int offset_of_six_bits(const uint8_t* bytes, int64_t j) {
  return j < 4 ? bytes[j + 4] & 63 : (bytes[j + 4] >> 4) + 16 * (bytes[j] >> 6);
}

// The j-th of q3_K's sixteen scales, in 12 bytes: lower four bits in the lower, then the upper
// halves of bytes 0 to 7, upper two bits in bytes 8 to 11, a pair of bits for each four scales.
inline int scale_of_q3(const uint8_t* bytes, int64_t j) {
  const int lower = j < 8 ? bytes[j] & 15 : bytes[j - 8] >> 4;
  return lower + 16 * (bytes[8 + j % 4] >> 2 * (j / 4) & 3) - 32;
}

// Of blocks of 256 numbers, the i-th. Bytes of two or four bits each hold numbers that lie 32
// apart.
inline double value_of_256(WeightFormat format, const uint8_t* block, int64_t i) {
  const int64_t half = i / 128, quarter = i % 128 / 32, group = i / 32, l = i % 32;
  switch (format) {
    case WeightFormat::q2_K: {
      const uint8_t* d = block + 80;
      const int q = block[16 + 32 * half + l] >> 2 * quarter & 3, scales = block[i / 16];
      return half_value(d) * (scales & 15) * q - half_value(d + 2) * (scales >> 4);
    }
    case WeightFormat::q3_K: {
      const int lower = block[32 + 32 * half + l] >> 2 * quarter & 3;
      const int q = lower + 4 * (block[l] >> group & 1);
      return half_value(block + 108) * scale_of_q3(block + 96, i / 16) * (q - 4);
    }
    case WeightFormat::q4_K: {
      const int byte = block[16 + 32 * (i / 64) + l], q = group % 2 == 0 ? byte & 15 : byte >> 4;
      return half_value(block) * scale_of_six_bits(block + 4, group) * q -
             half_value(block + 2) * offset_of_six_bits(block + 4, group);
    }
    case WeightFormat::q5_K: {
      const int byte = block[48 + 32 * (i / 64) + l],
                lower = group % 2 == 0 ? byte & 15 : byte >> 4;
      const int q = lower + 16 * (block[16 + l] >> group & 1);
      return half_value(block) * scale_of_six_bits(block + 4, group) * q -
             half_value(block + 2) * offset_of_six_bits(block + 4, group);
    }
    case WeightFormat::q6_K: {
      const int byte = block[64 * half + i % 64], lower = quarter < 2 ? byte & 15 : byte >> 4;
      const int q = lower + 16 * (block[128 + 32 * half + l] >> 2 * quarter & 3);
      return half_value(block + 208) * static_cast<int8_t>(block[192 + i / 16]) * (q - 32);
    }
    case WeightFormat::iq4_xs: {
      const int lower = block[4 + group / 2] >> 4 * (group % 2) & 15;
      const int scale = lower + 16 * (block[2 + group / 4] >> 2 * (group % 4) & 3) - 32;
      return half_value(block) * scale * kIq4Numbers[nibble(block + 8 + 16 * group, l)];
    }
    default:
      return NAN;
  }
}

// x[k] of a row.
inline double packed_value(WeightFormat format, const uint8_t* row, int64_t k) {
  const WeightBlocks& blocks = blocks_of(format);
  const uint8_t* block = row + k / blocks.numbers * blocks.bytes;
  switch (format) {
    case WeightFormat::f32: {
      float value;
      std::memcpy(&value, block, sizeof(value));
      return value;
    }
    case WeightFormat::f16:
      return half_value(block);
    case WeightFormat::bf16: {
      uint16_t upper;
      std::memcpy(&upper, block, sizeof(upper));
      const uint32_t bits = uint32_t{upper} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    case WeightFormat::fp8: {
      float scale;
      std::memcpy(&scale, block, sizeof(scale));
      return scale * e4m3_value(block[4 + k % 128]);
    }
    default:
      return blocks.numbers == 32 ? value_of_32(format, block, k % 32)
                                  : value_of_256(format, block, k % 256);
  }
}

// Any bytes may be numbers that are not finite: gives these blocks scales of 1/32 to 1.
inline void tame_blocks(WeightFormat format, uint8_t* data, int64_t bytes) {
  const WeightBlocks& blocks = blocks_of(format);
  for (int64_t block = 0; block < bytes; block += blocks.bytes) {
    if (format == WeightFormat::fp8) {
      const float scale = 1.0F / static_cast<float>(1 + data[block] % 8);
      for (int64_t i = 4; i < blocks.bytes; ++i) data[block + i] &= 0xbf;  // up to 1.875
      std::memcpy(data + block, &scale, sizeof(scale));
    }
    if (format == WeightFormat::mxfp4) data[block] = 122 + data[block] % 4;
    for (const int16_t half : blocks.halves) {
      if (half >= 0) data[block + half + 1] = 0x28 + data[block + half + 1] % 8;
    }
  }
}

}  // namespace attnres::reference
