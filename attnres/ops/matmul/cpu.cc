#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "attnres/ops/matmul/products.h"
#include "attnres/ops/matmul/weight_gradient.h"
#include "attnres/ops/packed_weight/streaming_product.h"
#include "attnres/support/signal_stack.h"

namespace attnres {
namespace {

using at::Tensor;

using Scalars = c10::List<std::optional<at::Scalar>>;
using Linear = Tensor(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias,
                      c10::string_view operation, Scalars scalars,
                      std::optional<c10::string_view> algorithm);
using LinearAndAdd = Tensor(const Tensor& x, const Tensor& other, const Tensor& weight,
                            const std::optional<Tensor>& bias, c10::string_view operation);

// A stack for this thread as long as it lives: the handlers may be another's, such as Python's.
void keep_signals_off_onednn() {
  thread_local const SignalStack stack;
}

// a b^T.
Tensor onednn_linear(const Tensor& a, const Tensor& b) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("mkldnn::_linear_pointwise", "")
                                    .typed<Linear>();
  keep_signals_off_onednn();
  return operation.call(a, b, std::nullopt, "none", Scalars(), "");
}

// a b^T + sum.
Tensor onednn_linear_and_add(const Tensor& a, const Tensor& b, const Tensor& sum) {
  static const auto operation = c10::Dispatcher::singleton()
                                    .findSchemaOrThrow("mkldnn::_linear_pointwise", "binary")
                                    .typed<LinearAndAdd>();
  keep_signals_off_onednn();
  return operation.call(a, sum, b, std::nullopt, "add");
}

Tensor onednn_product(Product which, const Tensor& a, const Tensor& b) {
  switch (which) {
    case Product::output:
      return onednn_linear(a, b);
    case Product::input_gradient:
      return onednn_linear(a, b.t());
    case Product::weight_gradient: {
      const Tensor sum = at::empty({a.size(1), b.size(1)}, a.options().dtype(at::kFloat));
      weight_gradient_in_blocks(a, b, sum, /*add=*/false);
      return sum;
    }
  }
  TORCH_INTERNAL_ASSERT(false);
}

// a b^T.
Tensor product_by_stream(const Tensor& a, const Tensor& b) {
  const WeightFormat format =
      b.scalar_type() == at::kFloat ? WeightFormat::f32 : WeightFormat::bf16;
  const PackedMatrix weight = {b.contiguous(), format, b.size(1)};
  return streaming_products(a.to(at::kFloat).contiguous(), {weight}).front().to(a.scalar_type());
}

Provider chosen(Product which, const Tensor& a, const Tensor& b) {
  ProductSizes sizes = {a.size(0), a.size(1), b.size(1)};
  if (which == Product::output) sizes.N = b.size(0);
  if (sizes.M == 0 || sizes.N == 0 || sizes.K == 0) return Provider::libtorch;
  return provider_for(processor(), a.scalar_type(), which, sizes);
}

Tensor product_on_cpu(Product which, const Tensor& a, const Tensor& b) {
  return product(which, a, b, chosen(which, a, b));
}

void add_product_on_cpu(Tensor& sum, Product which, const Tensor& a, const Tensor& b) {
  const Provider provider = chosen(which, a, b);
  const bool by_onednn = provider == Provider::onednn;
  if (by_onednn && which == Product::weight_gradient && sum.scalar_type() == at::kFloat &&
      sum.is_contiguous()) {
    weight_gradient_in_blocks(a, b, sum, /*add=*/true);
  } else if (by_onednn && which == Product::input_gradient &&
             sum.scalar_type() == a.scalar_type()) {
    sum = onednn_linear_and_add(a, b.t(), sum);
  } else if (provider == Provider::libtorch) {
    add_product_composed(sum, which, a, b);
  } else {
    sum.add_(product(which, a, b, provider));
  }
}

const OnDevice product_cpu(product_table, at::kCPU, &product_on_cpu);
const OnDevice add_product_cpu(add_product_table, at::kCPU, &add_product_on_cpu);

}  // namespace

Tensor product(Product which, const Tensor& a, const Tensor& b, Provider provider) {
  if (provider == Provider::streaming) return product_by_stream(a, b);
  if (provider == Provider::onednn) return onednn_product(which, a, b);
  return product_composed(which, a, b);
}

}  // namespace attnres
