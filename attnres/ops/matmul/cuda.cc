#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "attnres/ops/matmul/products.h"

namespace attnres {
namespace {

using at::Tensor;

// Whose sums cuBLAS rounds once, to float32.
bool is_wide(Product which, const Tensor& a) {
  return which == Product::weight_gradient && a.scalar_type() == at::kBFloat16;
}

Tensor product_cuda(Product which, const Tensor& a, const Tensor& b) {
  return is_wide(which, a) ? at::mm(a.t(), b, at::kFloat) : product_composed(which, a, b);
}

void add_product_cuda(Tensor& sum, Product which, const Tensor& a, const Tensor& b) {
  if (is_wide(which, a) && sum.scalar_type() == at::kFloat) {
    at::addmm_out(sum, sum, a.t(), b, at::kFloat);
  } else {
    add_product_composed(sum, which, a, b);
  }
}

const OnDevice products_on_gpu(product_table, at::kCUDA, &product_cuda);
const OnDevice added_products_on_gpu(add_product_table, at::kCUDA, &add_product_cuda);

}  // namespace
}  // namespace attnres
