#include "attnres/ops/packed_weight/packed_weight.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

constinit DeviceTable<decltype(unpack_weight_composed)> unpack_weight_table(
    &unpack_weight_composed);
constinit DeviceTable<decltype(streaming_product_composed)> streaming_product_table(
    &streaming_product_composed);

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
  return unpack_weight_table.of(weight.bytes)(weight);
}

Tensor streaming_product(const Tensor& x_MK, const Tensor& rows, WeightFormat format) {
  require_one_device("streaming product", x_MK, rows);
  return streaming_product_table.of(x_MK)(x_MK, rows, format);
}

}  // namespace attnres
