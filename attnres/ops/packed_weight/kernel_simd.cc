#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "attnres/ops/packed_weight/kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "attnres/ops/packed_weight/kernel_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h.
#include "attnres/ops/packed_weight/thin_product-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace attnres::kernel {
namespace HWY_NAMESPACE {

void thin_product_here(const ThinProduct& op, int64_t first, int64_t last) {
  multiply_thin(op, first, last);
}

void unpack_rows_here(const PackedRows& from, int64_t first, int64_t last, float* to) {
  for (int64_t n = first; n < last; ++n, to += from.columns) unpack_row(from, n, to);
}

QuantizedRow quantize_row_here(const float* x, int64_t columns, WeightFormat format,
                               uint8_t* memory) {
  const int64_t bytes = quantized_row_bytes(columns);
  const int64_t padded = (columns + kStep - 1) / kStep * kStep;
  const int excess = format == WeightFormat::q8_0 ? 128 : 8;
  auto* numbers = reinterpret_cast<int8_t*>(memory);
  auto* starts = reinterpret_cast<int32_t*>(memory + padded);
  auto* scales = reinterpret_cast<float*>(memory + 2 * padded);
  if (padded > columns) std::memset(memory, 0, bytes);
  for (int64_t k = 0; k < columns; k += kPackedBlock) {
    scales[k / kPackedBlock] = quantize_block(x + k, numbers + k);
  }
  for (int64_t i = 0; i < columns / 4; ++i) {
    const int8_t* four = numbers + 4 * i;
    starts[i] = -excess * (four[0] + four[1] + four[2] + four[3]);
  }
  return {numbers, starts, scales};
}

}  // namespace HWY_NAMESPACE
}  // namespace attnres::kernel
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace attnres::kernel {

HWY_EXPORT(thin_product_here);
HWY_EXPORT(unpack_rows_here);
HWY_EXPORT(quantize_row_here);

void thin_product(const ThinProduct& op, int64_t first, int64_t last) {
  HWY_DYNAMIC_DISPATCH(thin_product_here)(op, first, last);
}

void unpack_rows(const PackedRows& from, int64_t first, int64_t last, float* to) {
  HWY_DYNAMIC_DISPATCH(unpack_rows_here)(from, first, last, to);
}

namespace {

float largest_magnitude(const float* x) {
  float largest = 0;
  for (int64_t i = 0; i < kPackedBlock; ++i) largest = std::max(largest, std::fabs(x[i]));
  return largest;
}

// To the nearest, ties to even, the same on every processor.
uint16_t half_of(float number) {
  const auto bits = std::bit_cast<uint32_t>(number);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  constexpr uint32_t kInfinity = 0x7f800000, kLeastNormal = 0x38800000;  // 2^-14
  constexpr uint32_t kBias = (127 - 15) << 23;
  if (magnitude > kInfinity) return sign | 0x7e00;
  if (magnitude < kLeastNormal) {
    return sign | static_cast<uint16_t>(std::nearbyint(std::fabs(number) * 0x1p24F));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>(std::min<uint32_t>((rounded - kBias) >> 13, 0x7c00));
}

void store_half(float number, uint8_t* to) {
  const uint16_t half = half_of(number);
  std::memcpy(to, &half, sizeof(half));
}

void pack_q8_0(const float* x, uint8_t* to) {
  const float scale = largest_magnitude(x) / 127;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  store_half(scale, to);
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    to[2 + i] = static_cast<uint8_t>(static_cast<int8_t>(std::round(x[i] * inverse)));
  }
}

void pack_q4_0(const float* x, uint8_t* to) {
  float extreme = 0;  // of largest magnitude, with its sign
  for (int64_t i = 0; i < kPackedBlock; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float scale = extreme / -8;
  const float inverse = scale == 0 ? 0 : 1 / scale;
  store_half(scale, to);
  const auto nibble = [&](float number) {
    return static_cast<uint8_t>(std::min(15, static_cast<int>(number * inverse + 8.5F)));
  };
  for (int64_t i = 0; i < kPackedBlock / 2; ++i) {
    to[2 + i] = static_cast<uint8_t>(nibble(x[i]) | nibble(x[i + kPackedBlock / 2]) << 4);
  }
}

// Numbers one by one.
void pack_plain(const float* from, int64_t count, WeightFormat format, uint8_t* to) {
  if (format == WeightFormat::f32) {
    std::memcpy(to, from, count * sizeof(float));
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    if (format == WeightFormat::f16) {
      store_half(from[i], to + 2 * i);
    } else {
      const auto bits = std::bit_cast<uint32_t>(from[i]);
      const auto upper = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
      std::memcpy(to + 2 * i, &upper, sizeof(upper));
    }
  }
}

}  // namespace

void pack_rows(const float* from, int64_t rows, int64_t columns, WeightFormat format, uint8_t* to) {
  const int64_t numbers = rows * columns;
  if (!has_blocks(format)) return pack_plain(from, numbers, format, to);
  const int64_t bytes = packed_unit_bytes(format);
  for (int64_t i = 0; i < numbers; i += kPackedBlock, to += bytes) {
    format == WeightFormat::q8_0 ? pack_q8_0(from + i, to) : pack_q4_0(from + i, to);
  }
}

QuantizedRow quantize_row(const float* x, int64_t columns, WeightFormat format, uint8_t* memory) {
  return HWY_DYNAMIC_DISPATCH(quantize_row_here)(x, columns, format, memory);
}

}  // namespace attnres::kernel
#endif
