#include "attnres/ops/packed_weight/packed_weight.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <limits>
#include <vector>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

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
    case WeightFormat::f32:
    case WeightFormat::bf16:
      break;
  }
  return std::numeric_limits<float>::max();
}

int64_t rows_in(const Tensor& values) {
  return values.numel() / values.size(-1);
}

}  // namespace

kernel::PackedRows rows_of(const PackedMatrix& weight) {
  return {weight.bytes.const_data_ptr<uint8_t>(), weight.format, weight.columns};
}

void pack_weight(const Tensor& values, const PackedMatrix& weight) {
  const int64_t K = values.size(-1), row_bytes = weight.bytes.size(-1);
  require(K == weight.columns && values.numel() / K == weight.bytes.numel() / row_bytes,
          "packed weight: numbers of shape {} do not fit one of {} columns", shape_of(values),
          weight.columns);
  const Tensor numbers = values.detach().to(at::kFloat).contiguous();
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

PackedMatrix pack_weight(const Tensor& values, WeightFormat format) {
  const int64_t K = values.size(-1);
  require(!has_blocks(format) || K % kPackedBlock == 0,
          "packed weight: rows of {} numbers are no multiple of {}, as quantized ones have to be",
          K, kPackedBlock);
  std::vector<int64_t> shape = values.sizes().vec();
  shape.back() = packed_row_bytes(format, K);
  PackedMatrix packed = {at::empty(shape, at::kByte), format, K};
  pack_weight(values, packed);
  return packed;
}

Tensor unpack_weight(const PackedMatrix& weight) {
  std::vector<int64_t> shape = weight.bytes.sizes().vec();
  shape.back() = weight.columns;
  Tensor values = at::empty(shape, at::kFloat);
  auto* to = values.mutable_data_ptr<float>();
  const kernel::PackedRows rows = rows_of(weight);
  at::parallel_for(0, rows_in(values), 1 + 65536 / weight.columns,
                   [&](int64_t first, int64_t last) {
                     kernel::unpack_rows(rows, first, last, to + first * weight.columns);
                   });
  return values;
}

}  // namespace attnres
