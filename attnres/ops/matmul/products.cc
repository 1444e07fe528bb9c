#include "attnres/ops/matmul/products.h"

namespace attnres {

using at::Tensor;

constinit DeviceTable<decltype(product_composed)> product_table(&product_composed);
constinit DeviceTable<decltype(add_product_composed)> add_product_table(&add_product_composed);

Tensor product(Product which, const Tensor& a, const Tensor& b) {
  return product_table.of(a)(which, a, b);
}

void add_product(Tensor& sum, Product which, const Tensor& a, const Tensor& b) {
  add_product_table.of(a)(sum, which, a, b);
}

}  // namespace attnres
