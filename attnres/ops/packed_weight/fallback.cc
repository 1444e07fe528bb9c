#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/mm.h>

#include "attnres/ops/packed_weight/packed_weight.h"
#include "attnres/ops/packed_weight/streaming_product.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor numbers_as(const Tensor& bytes, at::ScalarType dtype) {
  return bytes.contiguous().view(dtype).to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
}

}  // namespace

Tensor unpack_weight_composed(const PackedMatrix& weight) {
  if (weight.format == WeightFormat::f32) return numbers_as(weight.bytes, at::kFloat);
  if (weight.format == WeightFormat::f16) return numbers_as(weight.bytes, at::kHalf);
  if (weight.format == WeightFormat::bf16) return numbers_as(weight.bytes, at::kBFloat16);
  const int64_t unit = packed_unit_bytes(weight.format);
  const Tensor blocks = weight.bytes.unflatten(-1, {-1, unit});
  const Tensor scales = numbers_as(blocks.narrow(-1, 0, 2), at::kHalf);
  const Tensor stored = blocks.narrow(-1, 2, unit - 2);
  const Tensor numbers =
      weight.format == WeightFormat::q8_0
          ? numbers_as(stored, at::kChar)
          : at::cat({stored.bitwise_and(15), stored.bitwise_right_shift(4)}, -1).to(at::kFloat) - 8;
  return (scales * numbers).flatten(-2);
}

Tensor streaming_product_composed(const Tensor& x_MK, const Tensor& rows, WeightFormat format) {
  const Tensor numbers = rows.scalar_type() == at::kByte
                             ? unpack_weight_composed({rows, format, x_MK.size(1)})
                             : rows.to(at::kFloat);
  return at::mm(x_MK, numbers.t());
}

}  // namespace attnres
