#include <ATen/ops/mm.h>

#include <utility>

#include "attnres/ops/matmul/products.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// The operands as at::mm takes them.
std::pair<Tensor, Tensor> factors(Product which, const Tensor& a, const Tensor& b) {
  if (which == Product::output) return {a, b.t()};
  return {which == Product::weight_gradient ? a.t() : a, b};
}

}  // namespace

Tensor product_composed(Product which, const Tensor& a, const Tensor& b) {
  const auto [left, right] = factors(which, a, b);
  const Tensor result = at::mm(left, right);
  return which == Product::weight_gradient ? result.to(compute_dtype(a)) : result;
}

void add_product_composed(Tensor& sum, Product which, const Tensor& a, const Tensor& b) {
  if (sum.scalar_type() != a.scalar_type()) {
    sum.add_(product_composed(which, a, b));
    return;
  }
  const auto [left, right] = factors(which, a, b);
  sum.addmm_(left, right);
}

}  // namespace attnres
