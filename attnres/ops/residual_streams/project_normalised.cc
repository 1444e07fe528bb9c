#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/matmul/products.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/residual_streams/residual_streams.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The product first and the norm after it: W x [N, R] and rho = 1 / sqrt(mean(x^2) + eps) [N, 1],
// in float32 or better.
using ProjectedRows = std::tuple<Tensor, Tensor>;

Tensor rows_of(const Tensor& x, const Tensor& projection_RK) {
  return x.reshape_symint({-1, projection_RK.sym_size(1)});
}

ProjectedRows project_any(const Tensor& x, const Tensor& projection_RK, double eps) {
  const Tensor x_NK = rows_of(x, projection_RK);
  const at::ScalarType wide = compute_dtype(x);
  const Tensor length = at::linalg_vector_norm(x_NK, 2, {-1}, /*keepdim=*/true, wide);
  return {product(Product::output, x_NK.to(projection_RK.scalar_type()), projection_RK).to(wide),
          length.square_().div_(static_cast<double>(x_NK.size(1))).add_(eps).rsqrt_()};
}

ProjectedRows project_meta(const Tensor& x, const Tensor& projection_RK, double /*eps*/) {
  const c10::SymInt N = x.sym_numel() / projection_RK.sym_size(1);
  const auto options = x.options().dtype(compute_dtype(x)).requires_grad(false);
  return {at::empty_symint({N, projection_RK.sym_size(0)}, options),
          at::empty_symint({N, 1}, options)};
}

// With y = W x:  dW = sum dy x^T,  dx = W^T dy - x rho^3 drho / K
// Puts the gradient of x, where it is wanted, into `grad_x`, or adds it to what is there. That of W
// has no numbers where it is not needed.
Tensor project_backward_any(const Tensor& grad_product, const Tensor& grad_inverse_rms,
                            const Tensor& x, const Tensor& projection_RK, const Tensor& inverse_rms,
                            bool projection_needed, const std::optional<Tensor>& grad_x,
                            bool accumulate) {
  const Tensor x_NK = rows_of(x, projection_RK);
  const at::ScalarType wide = inverse_rms.scalar_type();
  const Tensor grad = grad_product.to(projection_RK.scalar_type());
  if (grad_x) {
    const Tensor of_length =
        at::mul(grad_inverse_rms, inverse_rms.pow(3)).div_(-static_cast<double>(x_NK.size(1)));
    Tensor result_NK = grad_x->view(x_NK.sizes()), sum_NK = result_NK;
    if (accumulate) {
      add_product(sum_NK, Product::input_gradient, grad, projection_RK);
    } else {
      sum_NK = product(Product::input_gradient, grad, projection_RK).to(wide);
    }
    at::addcmul_out(result_NK, sum_NK, x_NK.to(wide), of_length);
  }
  if (!projection_needed) return empty_result(projection_RK);
  return product(Product::weight_gradient, grad, x_NK.to(projection_RK.scalar_type()))
      .to(projection_RK.scalar_type());
}

Tensor project_backward_meta(const Tensor& /*grad_product*/, const Tensor& /*grad_inverse_rms*/,
                             const Tensor& /*x*/, const Tensor& projection_RK,
                             const Tensor& /*inverse_rms*/, bool projection_needed,
                             const std::optional<Tensor>& /*grad_x*/, bool /*accumulate*/) {
  return empty_if_wanted(projection_needed, projection_RK);
}

constexpr Operation<project_meta> kProject("attnres::project_normalised_fused");
constexpr Operation<project_backward_meta> kProjectBackward(
    "attnres::project_normalised_fused_backward");

class ProjectNormalisedFunction : public torch::autograd::Function<ProjectNormalisedFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x,
                               const Tensor& projection_RK, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [product, inverse_rms] = kProject->call(x, projection_RK, eps);
    context->save_for_backward({x, projection_RK, inverse_rms});
    return {product, inverse_rms};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const bool projection_needed = context->needs_input_grad(1);
    const SourceGradient grad_x(saved[0], context->needs_input_grad(0));
    const Tensor grad_projection =
        kProjectBackward->call(gradients[0], gradients[1], saved[0], saved[1], saved[2],
                               projection_needed, given(grad_x.sum()), grad_x.accumulate());
    return {grad_x.to_return(), projection_needed ? grad_projection : Tensor(), Tensor()};
  }
};

ProjectedRows project_autograd(const Tensor& x, const Tensor& projection_RK, double eps) {
  require_untransformed("project_normalised_fused", {x, projection_RK});
  const variable_list results = ProjectNormalisedFunction::apply(x, projection_RK, eps);
  return {results[0], results[1]};
}

// The sizes of the result: those of x, with R in place of the last, which hold K numbers.
std::vector<c10::SymInt> projected_sizes(const Tensor& x, const Tensor& projection_RK) {
  std::vector<c10::SymInt> sizes = x.sym_sizes().vec();
  const c10::SymInt K = projection_RK.dim() == 2 ? projection_RK.sym_size(1) : 0;
  c10::SymInt numbers = 1;
  do {
    if (sizes.empty() || sizes.back() < 1 || K < 1 || x.device() != projection_RK.device()) {
      fail(
          "project_normalised: expected W [R, K], K the numbers in the last dimensions of x, on "
          "one device; they are {} on {} and {} on {}",
          shape_of(projection_RK), projection_RK.device().str(), shape_of(x), x.device().str());
    }
    numbers *= sizes.back();
    sizes.pop_back();
  } while (numbers < K);
  if (numbers != K) {
    fail("project_normalised: the last dimensions of x {} do not hold the numbers that W {} is for",
         shape_of(x), shape_of(projection_RK));
  }
  sizes.push_back(projection_RK.sym_size(0));
  return sizes;
}

}  // namespace

Tensor project_normalised(const Tensor& x, const Tensor& projection_RK, double eps) {
  const std::vector<c10::SymInt> sizes = projected_sizes(x, projection_RK);
  if (is_transformed({x, projection_RK})) {
    return project_normalised_composed(rows_of(x, projection_RK), projection_RK, eps)
        .reshape_symint(sizes);
  }
  const auto [product, inverse_rms] = call_operation(*kProject, x, projection_RK, eps);
  return at::mul(product, inverse_rms).view_symint(sizes);
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("project_normalised(Tensor x, Tensor projection, float eps) -> Tensor",
        &project_normalised);
  m.def(
      "project_normalised_fused(Tensor x, Tensor projection, float eps)"
      " -> (Tensor product, Tensor inverse_rms)");
  m.def(
      "project_normalised_fused_backward(Tensor grad_product, Tensor grad_inverse_rms, Tensor x,"
      " Tensor projection, Tensor inverse_rms, bool projection_needed, Tensor(a!)? grad_x,"
      " bool accumulate) -> Tensor grad_projection");
}

TORCH_LIBRARY_IMPL(attnres, CompositeExplicitAutograd, m) {
  m.impl("project_normalised_fused", &project_any);
  m.impl("project_normalised_fused_backward", &project_backward_any);
}
TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("project_normalised_fused", &project_meta);
  m.impl("project_normalised_fused_backward", &project_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("project_normalised", &project_normalised);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("project_normalised_fused", &project_autograd);
  implement_once_differentiable(m, {"project_normalised_fused_backward"});
}

}  // namespace attnres
