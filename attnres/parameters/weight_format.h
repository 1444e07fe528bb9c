// How the numbers of a weight are stored for inference: as GGUF stores them, so that a file and a
// model that was packed here hold the same numbers. No tensor library.
#pragma once

#include <cstdint>

namespace attnres {

// A row of K numbers is stored in one piece:
//   f32, f16, bf16   as they are
//   q8_0   blocks of 32 numbers: a float16 scale d, then 32 int8 q; x = d q
//   q4_0   blocks of 32 numbers: a float16 scale d, then 16 bytes, the i-th of which holds the i-th
//          number in its lower four bits and the (i + 16)-th in its upper four; x = d (q - 8)
enum class WeightFormat { f32, f16, bf16, q8_0, q4_0 };

inline constexpr int64_t kPackedBlock = 32;  // of q8_0 and q4_0: K is a multiple of it

constexpr bool has_blocks(WeightFormat format) {
  return format == WeightFormat::q8_0 || format == WeightFormat::q4_0;
}

// Bytes of a block, or of one number where there are none.
constexpr int64_t packed_unit_bytes(WeightFormat format) {
  switch (format) {
    case WeightFormat::f32:
      return 4;
    case WeightFormat::f16:
    case WeightFormat::bf16:
      return 2;
    case WeightFormat::q8_0:
      return 2 + kPackedBlock;
    case WeightFormat::q4_0:
      return 2 + kPackedBlock / 2;
  }
  return 0;
}

constexpr int64_t packed_row_bytes(WeightFormat format, int64_t columns) {
  return has_blocks(format) ? columns / kPackedBlock * packed_unit_bytes(format)
                            : columns * packed_unit_bytes(format);
}

}  // namespace attnres
