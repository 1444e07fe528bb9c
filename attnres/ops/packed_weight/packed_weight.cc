#include "attnres/ops/packed_weight/packed_weight.h"

#include <ATen/ops/empty.h>

#include <vector>

#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

constinit DeviceTable<decltype(unpack_weight_composed)> unpack_weight_table(
    &unpack_weight_composed);
constinit DeviceTable<decltype(streaming_products_composed)> streaming_products_table(
    &streaming_products_composed);

PackedMatrix pack_weight(const Tensor& values, WeightFormat format) {
  const int64_t K = values.size(-1);
  require(fits(format, K),
          "packed weight: rows of {} numbers are no multiple of {}, as those of {} have to be", K,
          blocks_of(format).numbers, blocks_of(format).name);
  std::vector<int64_t> shape = values.sizes().vec();
  shape.back() = packed_row_bytes(format, K);
  PackedMatrix packed = {at::empty(shape, at::kByte), format, K};
  pack_weight(values, packed);
  return packed;
}

Tensor unpack_weight(const PackedMatrix& weight) {
  return unpack_weight_table.of(weight.bytes)(weight);
}

std::vector<Tensor> streaming_products(const Tensor& x_MK,
                                       const std::vector<PackedMatrix>& weights) {
  for (const PackedMatrix& weight : weights) {
    require_one_device("streaming product", x_MK, weight.bytes);
  }
  return streaming_products_table.of(x_MK)(x_MK, weights);
}

}  // namespace attnres
