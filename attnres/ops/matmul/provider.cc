#include "attnres/ops/matmul/provider.h"

#include <ATen/Context.h>

#include "attnres/ops/packed_weight/kernel_wide.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// Products of up to so many rows of float32 are faster as a stream.
constexpr int64_t kFewRows = 32;

}  // namespace

Provider provider_for(const Processor& processor, at::ScalarType dtype, Product product,
                      const ProductSizes& sizes) {
  const int64_t few = dtype == at::kFloat ? kFewRows : dtype == at::kBFloat16 ? kFewRows / 4 : 0;
  if (product == Product::output && sizes.M <= few) return Provider::streaming;
  const bool bfloat16 = dtype == at::kBFloat16 && processor.bfloat16;
  if (!processor.has_onednn || !processor.amd || !processor.avx512 ||
      (dtype != at::kFloat && !bfloat16)) {
    return Provider::libtorch;
  }
  if (product == Product::weight_gradient) {
    return sizes.M >= 64 ? Provider::onednn : Provider::libtorch;
  }
  if (bfloat16) return Provider::libtorch;  // which is oneDNN too
  if (product == Product::input_gradient) return Provider::onednn;
  // With few rows it spends its time on arranging the weight.
  return sizes.M >= 128 ? Provider::onednn : Provider::libtorch;
}

bool is_streamed(const PackedMatrix& weight, int64_t rows) {
  constexpr int64_t kFewRowsOfBlocks = 64;
  if (is_quantized(weight.format) && weight.bytes.is_cpu() && kernel::has_wide_products()) {
    return true;
  }
  return rows <= (has_blocks(weight.format) ? kFewRowsOfBlocks : kFewRows);
}

std::string provider_name(Provider provider, at::ScalarType dtype) {
  if (provider == Provider::streaming) return "streaming";
  if (provider == Provider::onednn) return "oneDNN";
  if (dtype == at::kBFloat16) return at::hasMKLDNN() ? "oneDNN" : "libtorch";
  return at::hasMKL() ? "MKL" : "libtorch";
}

void require_bfloat16_products(const std::string& what, const Processor& on) {
  require_usage(on.bfloat16,
                "{}: this processor has no products of bfloat16 numbers (AVX-512 BF16), without "
                "which bfloat16 is a hundred times slower than float32; use float32",
                what);
}

}  // namespace attnres
