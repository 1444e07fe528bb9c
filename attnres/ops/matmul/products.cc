#include "attnres/ops/matmul/products.h"

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/mm.h>

#include <optional>

namespace attnres {
namespace {

using at::Tensor;

using Scalars = c10::List<std::optional<at::Scalar>>;
using Linear = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                      c10::string_view operation, Scalars scalars,
                      std::optional<c10::string_view> algorithm);
using LinearAndAdd = Tensor(const Tensor& x, const Tensor& other, const Tensor& weight,
                            const std::optional<Tensor>& bias, c10::string_view operation);

// a b^T.
Tensor onednn_linear(const Tensor& a, const Tensor& b) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                    .typed<Linear>();
  return operation.call(a, b, std::nullopt, "none", Scalars(), "");
}

// a b^T + sum.
Tensor onednn_linear_and_add(const Tensor& a, const Tensor& b, const Tensor& sum) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                    .typed<LinearAndAdd>();
  return operation.call(a, sum, b, std::nullopt, "add");
}

// oneDNN's first operand is copied where it is not contiguous: it had better be the smaller one.
Tensor onednn_weight_gradient(const Tensor& grad_MN, const Tensor& x_MK) {
  if (grad_MN.size(1) <= x_MK.size(1)) return onednn_linear(grad_MN.t(), x_MK.t());
  return onednn_linear(x_MK.t(), grad_MN.t()).t();
}

Tensor onednn_product(Product which, const Tensor& a, const Tensor& b) {
  switch (which) {
    case Product::output:
      return onednn_linear(a, b);
    case Product::input_gradient:
      return onednn_linear(a, b.t());
    case Product::weight_gradient:
      return onednn_weight_gradient(a, b);
  }
  TORCH_INTERNAL_ASSERT(false);
}

// The operands as at::mm takes them.
std::pair<Tensor, Tensor> factors(Product which, const Tensor& a, const Tensor& b) {
  if (which == Product::output) return {a, b.t()};
  return {which == Product::weight_gradient ? a.t() : a, b};
}

ProductSizes sizes_of(Product which, const Tensor& a, const Tensor& b) {
  if (which == Product::output) return {a.size(0), b.size(0), b.size(1)};
  return {a.size(0), a.size(1), b.size(1)};
}

Provider chosen(Product which, const Tensor& a, const Tensor& b) {
  const ProductSizes sizes = sizes_of(which, a, b);
  if (!a.is_cpu() || sizes.M == 0 || sizes.N == 0 || sizes.K == 0) return Provider::libtorch;
  return provider_for(processor(), a.scalar_type(), which, sizes);
}

}  // namespace

Tensor product(Product which, const Tensor& a, const Tensor& b, Provider provider) {
  if (provider == Provider::onednn) return onednn_product(which, a, b);
  const auto [left, right] = factors(which, a, b);
  return at::mm(left, right);
}

Tensor product(Product which, const Tensor& a, const Tensor& b) {
  return product(which, a, b, chosen(which, a, b));
}

void add_product(Tensor& sum, Product which, const Tensor& a, const Tensor& b) {
  if (sum.scalar_type() != a.scalar_type()) {
    sum.add_(product(which, a, b));
  } else if (chosen(which, a, b) == Provider::libtorch) {
    const auto [left, right] = factors(which, a, b);
    sum.addmm_(left, right);
  } else if (which == Product::input_gradient) {
    sum = onednn_linear_and_add(a, b.t(), sum);
  } else {
    sum.add_(onednn_product(which, a, b));
  }
}

bool has_onednn_products() {
  const auto has = [](const char* overload) {
    return c10::Dispatcher::singleton()
        .findSchema({"mkldnn::_linear_pointwise", overload})
        .has_value();
  };
  return at::globalContext().userEnabledMkldnn() && has("") && has("binary");
}

}  // namespace attnres
