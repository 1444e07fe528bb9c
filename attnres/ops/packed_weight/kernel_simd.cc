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

QuantizedRow quantize_row_here(const float* x, int64_t columns, uint8_t* memory) {
  const int64_t padded = (columns + kPiece - 1) / kPiece * kPiece;
  auto* numbers = reinterpret_cast<int8_t*>(memory);
  auto* sums = reinterpret_cast<float*>(memory + padded);
  float* scales = sums + padded / 16;
  if (padded > columns) std::memset(memory, 0, quantized_row_bytes(columns));
  for (int64_t k = 0; k < columns; k += 32) scales[k / 32] = quantize_block(x + k, numbers + k);
  for (int64_t group = 0; group < columns / 16; ++group) {
    int32_t sum = 0;
    for (int64_t i = 16 * group; i < 16 * (group + 1); ++i) sum += numbers[i];
    sums[place_of_group(group)] = scales[group / 2] * static_cast<float>(sum);
  }
  return {numbers, scales, sums};
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

QuantizedRow quantize_row(const float* x, int64_t columns, uint8_t* memory) {
  return HWY_DYNAMIC_DISPATCH(quantize_row_here)(x, columns, memory);
}

}  // namespace attnres::kernel
#endif
