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

// x[k] of a row.
inline double packed_value(WeightFormat format, const uint8_t* row, int64_t k) {
  const uint8_t* block = row + k / kPackedBlock * packed_unit_bytes(format);
  const int64_t i = k % kPackedBlock, half = kPackedBlock / 2;
  switch (format) {
    case WeightFormat::f32: {
      float value;
      std::memcpy(&value, row + 4 * k, sizeof(value));
      return value;
    }
    case WeightFormat::f16:
      return half_value(row + 2 * k);
    case WeightFormat::bf16: {
      uint16_t upper;
      std::memcpy(&upper, row + 2 * k, sizeof(upper));
      const uint32_t bits = uint32_t{upper} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    case WeightFormat::q8_0:
      return half_value(block) * static_cast<int8_t>(block[2 + i]);
    case WeightFormat::q4_0: {
      const int pair = block[2 + i % half];
      return half_value(block) * ((i < half ? pair & 15 : pair >> 4) - 8);
    }
  }
  return NAN;
}

}  // namespace attnres::reference
