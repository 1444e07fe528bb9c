#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <vector>

#include "attnres/ops/packed_weight/kernel.h"
#include "attnres/ops/packed_weight/pack_rows.h"
#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// NaN is larger than any.
double largest_number(WeightFormat format) {
  constexpr double kLargestHalf = 65504;
  switch (format) {
    case WeightFormat::f16:
      return kLargestHalf;
    case WeightFormat::q8_0:
      return 127 * kLargestHalf;
    case WeightFormat::q4_0:
      return 8 * kLargestHalf;
    case WeightFormat::q5_0:
      return 16 * kLargestHalf;
    case WeightFormat::q4_1:
    case WeightFormat::q5_1:
      return kLargestHalf;  // the least of a block
    case WeightFormat::q4_K:
    case WeightFormat::q5_K:
      return 63 * kLargestHalf;  // an offset, which alone may be a number
    case WeightFormat::q6_K:
      return 32 * 127 * kLargestHalf;
    default:
      return std::numeric_limits<float>::max();
  }
}

// Whether these bits of all numbers are set in none of them, which of NaN and infinity they are.
template <class Word>
bool none_has_all(const uint8_t* from, int64_t count, int64_t stride, Word bits) {
  std::atomic<bool> none = true;
  at::parallel_for(0, count, 1 << 16, [&](int64_t first, int64_t last) {
    bool any = false;
    for (int64_t i = first; i < last; ++i) {
      Word word;
      std::memcpy(&word, from + i * stride, sizeof(word));
      any |= (word & bits) == bits;
    }
    if (any) none = false;
  });
  return none;
}

int64_t rows_in(const Tensor& values) {
  return values.numel() / values.size(-1);
}

Tensor unpack_on_cpu(const PackedMatrix& weight) {
  std::vector<int64_t> shape = weight.bytes.sizes().vec();
  shape.back() = weight.columns;
  Tensor values = at::empty(shape, at::kFloat);
  auto* to = values.mutable_data_ptr<float>();
  const kernel::PackedRows rows = {weight.bytes.const_data_ptr<uint8_t>(), weight.format,
                                   weight.columns};
  at::parallel_for(0, rows_in(values), 1 + 65536 / weight.columns,
                   [&](int64_t first, int64_t last) {
                     kernel::unpack_rows(rows, first, last, to + first * weight.columns);
                   });
  return values;
}

const OnDevice unpack_weight_cpu(unpack_weight_table, at::kCPU, &unpack_on_cpu);

}  // namespace

bool has_finite_numbers(const PackedMatrix& weight) {
  constexpr uint16_t kHalfExponent = 0x7c00, kBfloat16Exponent = 0x7f80;
  constexpr uint32_t kFloatExponent = 0x7f800000;
  constexpr uint8_t kFp8NotANumber = 0x7f;  // without its sign
  const auto* bytes = weight.bytes.const_data_ptr<uint8_t>();
  const WeightBlocks& blocks = blocks_of(weight.format);
  const int64_t count = weight.bytes.numel() / blocks.bytes;
  switch (weight.format) {
    case WeightFormat::f32:
      return none_has_all(bytes, count, blocks.bytes, kFloatExponent);
    case WeightFormat::bf16:
      return none_has_all(bytes, count, blocks.bytes, kBfloat16Exponent);
    case WeightFormat::fp8:
      return none_has_all(bytes, count, blocks.bytes, kFloatExponent) &&
             weight.bytes.unflatten(-1, {-1, blocks.bytes})
                     .narrow(-1, 4, blocks.numbers)
                     .bitwise_and(kFp8NotANumber)
                     .max()
                     .item<uint8_t>() < kFp8NotANumber;
    case WeightFormat::mxfp4:  // a block's exponent: 255 is NaN, and 252 and more too large
      return none_has_all(bytes, count, blocks.bytes, uint8_t{252});
    default:
      return std::all_of(blocks.halves.begin(), blocks.halves.end(), [&](int16_t half) {
        return half < 0 || none_has_all(bytes + half, count, blocks.bytes, kHalfExponent);
      });
  }
}

void pack_weight(const Tensor& values, const PackedMatrix& weight) {
  const int64_t K = values.size(-1), row_bytes = weight.bytes.size(-1);
  require(K == weight.columns && values.numel() / K == weight.bytes.numel() / row_bytes,
          "packed weight: numbers of shape {} do not fit one of {} columns", shape_of(values),
          weight.columns);
  require(blocks_of(weight.format).is_packed_here,
          "packed weight: numbers cannot be rounded to {}, which is only read",
          blocks_of(weight.format).name);
  const Tensor numbers = values.detach().to(at::kCPU, at::kFloat).contiguous();
  const double most = numbers.numel() == 0 ? 0 : numbers.abs().max().item<double>();
  require(
      most <= largest_number(weight.format),
      "packed weight: it has numbers up to {}, and its format holds {} at most; store it as f32 "
      "or bf16",
      most, largest_number(weight.format));
  const float* from = numbers.const_data_ptr<float>();
  auto* to = weight.bytes.mutable_data_ptr<uint8_t>();
  at::parallel_for(0, rows_in(values), 1 + 65536 / K, [&](int64_t first, int64_t last) {
    kernel::pack_rows(from + first * K, last - first, K, weight.format, to + first * row_bytes);
  });
}

}  // namespace attnres
