// Who computes the matrix products of linear maps. libtorch holds two libraries: its own products
// call MKL for float32 and float64 and oneDNN for bfloat16. oneDNN computes float32 too, through
// other operations, with AVX-512 where MKL stays with AVX2: on AMD's processors. Products of few
// rows, which take as long as the weight comes from memory, are ours.
//
// The choice is a function of processor, dtype and sizes alone, never of a timing, so that a run
// has the same bits wherever and whenever it goes on on such a processor.
// records/matrix-products.md has the measurements behind it.
#pragma once

#include <ATen/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "attnres/ops/processor.h"
#include "attnres/parameters/packed_matrix.h"

namespace attnres {

// The products of a map y = x W^T and its gradients, with x [M, K], W [N, K] and g = dL/dy [M, N].
enum class Product {
  output,           // x W^T
  input_gradient,   // g W
  weight_gradient,  // g^T x
};

struct ProductSizes {
  int64_t M = 0, N = 0, K = 0;
};

enum class Provider {
  streaming,  // ours (packed_weight/streaming_product.h): outputs of few rows
  libtorch,   // at::mm
  onednn,     // mkldnn::_linear_pointwise; the weight's gradient in blocks (weight_gradient.h)
};

Provider provider_for(const Processor& processor, at::ScalarType dtype, Product product,
                      const ProductSizes& sizes);

// Whether a stream of packed numbers is faster than a product with unpacked ones. Without blocks
// that is where it is with float32 numbers.
bool is_streamed(const PackedMatrix& weight, int64_t rows);

// For people: "MKL", "oneDNN", "streaming".
std::string provider_name(Provider provider, at::ScalarType dtype);

// Throws UsageError on a processor without products of bfloat16 numbers, where they would take a
// hundred times as long as those of float32. `what` asks for them: "train.precision".
void require_bfloat16_products(const std::string& what, const Processor& on = processor());

}  // namespace attnres
