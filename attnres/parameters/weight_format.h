// How the numbers of a weight are stored for inference: as the files store them
// that people have, so that a file and a model hold the same numbers. No tensor library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace attnres {

// A row of K numbers is stored in one piece: f32, f16 and bf16 as they are, the others in blocks.
// d and m are float16, bits are numbered from the lowest, and nibbles q of 16 bytes are the first
// 16 numbers of 32 in their lower four bits and the others in their upper four.
//
// Blocks of 32 numbers:
//   q8_0    d, 32 int8 q              x = d q
//   q4_0    d, 16 bytes of nibbles    x = d (q - 8)
//   q4_1    d, m, 16 bytes            x = d q + m
//   q5_0    d, 32 bits, 16 bytes      x = d (q - 16), the i-th bit the fifth of the i-th q
//   q5_1    d, m, 32 bits, 16 bytes   x = d q + m
//   iq4_nl  d, 16 bytes               x = d t[q], t sixteen int8 numbers
//   mxfp4   a byte e, 16 bytes        x = 2^(e - 127) times the E2M1 number q (OCP MX v1.0)
// Blocks of 128 numbers:
//   fp8     a float32 scale d, 128 E4M3 numbers q (OCP FP8, without infinities)   x = d q
// Blocks of 256 numbers, in groups of 16 or 32 with small whole scales s, and b, of their own
// (bits of them in the order that reference.h of ops/packed_weight writes out):
//   q2_K    x = d s q - m b    q of 2 bits, groups of 16, s and b of 4
//   q3_K    x = d s (q - 4)    q of 3, groups of 16, s of 6, less 32
//   q4_K    x = d s q - m b    q of 4, groups of 32, s and b of 6
//   q5_K    x = d s q - m b    q of 5, groups of 32, s and b of 6
//   q6_K    x = d s (q - 32)   q of 6, groups of 16, s an int8
//   iq4_xs  x = d s t[q]       q of 4, groups of 32, s of 6, less 32
enum class WeightFormat {
  f32,
  f16,
  bf16,
  q8_0,
  q4_0,
  q4_1,
  q5_0,
  q5_1,
  q2_K,
  q3_K,
  q4_K,
  q5_K,
  q6_K,
  iq4_nl,
  iq4_xs,
  mxfp4,
  fp8
};

struct WeightBlocks {
  const char* name;
  int64_t numbers;      // 1 where there are no blocks; K is a multiple of it
  int64_t bytes;        // of a block
  bool is_packed_here;  // whether numbers can be rounded to it (pack_weight), not only read
  // Where in a block float16 numbers are; -1 for none.
  std::array<int16_t, 2> halves = {-1, -1};
};

// In the order of WeightFormat.
inline constexpr std::array<WeightBlocks, 17> kWeightFormats = {
    {{"f32", 1, 4, true},
     {"f16", 1, 2, true, {{0, -1}}},
     {"bf16", 1, 2, true},
     {"q8_0", 32, 34, true, {{0, -1}}},
     {"q4_0", 32, 18, true, {{0, -1}}},
     {"q4_1", 32, 20, true, {{0, 2}}},
     {"q5_0", 32, 22, true, {{0, -1}}},
     {"q5_1", 32, 24, true, {{0, 2}}},
     {"q2_K", 256, 84, false, {{80, 82}}},
     {"q3_K", 256, 110, false, {{108, -1}}},
     {"q4_K", 256, 144, true, {{0, 2}}},
     {"q5_K", 256, 176, true, {{0, 2}}},
     {"q6_K", 256, 210, true, {{208, -1}}},
     {"iq4_nl", 32, 18, false, {{0, -1}}},
     {"iq4_xs", 256, 136, false, {{0, -1}}},
     {"mxfp4", 32, 17, false},
     {"fp8", 128, 132, false}}};

constexpr const WeightBlocks& blocks_of(WeightFormat format) {
  return kWeightFormats[static_cast<size_t>(format)];
}
constexpr bool has_blocks(WeightFormat format) {
  return blocks_of(format).numbers > 1;
}
// Whether products round what they multiply by to int8 numbers, since the format's are whole ones.
constexpr bool is_quantized(WeightFormat format) {
  return has_blocks(format) && format != WeightFormat::fp8;
}
// Whether rows of so many numbers can be stored so.
constexpr bool fits(WeightFormat format, int64_t columns) {
  return columns % blocks_of(format).numbers == 0;
}
constexpr int64_t packed_row_bytes(WeightFormat format, int64_t columns) {
  return columns / blocks_of(format).numbers * blocks_of(format).bytes;
}

// t of iq4_nl and iq4_xs.
inline constexpr std::array<int8_t, 16> kIq4Numbers = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                       1,    13,   25,  38,  53,  69,  89,  113};
// Twice the numbers of E2M1.
inline constexpr std::array<int8_t, 16> kE2m1Numbers = {0, 1,  2,  3,  4,  6,  8,  12,
                                                        0, -1, -2, -3, -4, -6, -8, -12};

}  // namespace attnres
