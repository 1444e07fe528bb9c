#include "attnres/ops/rms_norm/rms_norm.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The sum, without numbers where nothing is added; its norm; 1 / RMS a token, without numbers where
// no gradient will be wanted.
using NormResult = std::tuple<Tensor, Tensor, Tensor>;
void check_norm_inputs(const Tensor& state, const std::optional<Tensor>& pending,
                       const Tensor& gain) {
  const char* name = pending ? "add_rms_norm" : "rms_norm";
  if (state.dim() < 1 || state.sym_size(-1) < 1 || gain.dim() != 1 ||
      gain.sym_size(0) != state.sym_size(-1)) {
    fail("{}: gain must be [D] for rows [..., D], D positive; it is {}, the rows {}", name,
         shape_of(gain), shape_of(state));
  }
  if (gain.scalar_type() != state.scalar_type() && gain.scalar_type() != at::kFloat) {
    fail("{}: gain must be {} like the rows, or float32, but is {}", name,
         c10::toString(state.scalar_type()), c10::toString(gain.scalar_type()));
  }
  if (gain.device() != state.device()) {
    fail("{}: gain is on {}, the rows on {}; move it there", name, gain.device().str(),
         state.device().str());
  }
  if (!pending) return;
  if (pending->sym_sizes() != state.sym_sizes() || pending->scalar_type() != state.scalar_type() ||
      pending->device() != state.device()) {
    fail("add_rms_norm: pending is {}, the state {}; they must be alike", described(*pending),
         described(state));
  }
}

NormResult norm_meta(const Tensor& state, const std::optional<Tensor>& pending,
                     const Tensor& /*gain*/, double /*eps*/, bool for_backward) {
  return {empty_if_wanted(pending.has_value(), state), empty_like_rows(state),
          for_backward ? empty_per_token(state) : empty_result(state)};
}

// The gradients of the sum, and of the gain.
std::tuple<Tensor, Tensor> norm_backward_meta(const Tensor& /*grad_normalized*/,
                                              const std::optional<Tensor>& /*grad_sum*/,
                                              const Tensor& sum, const Tensor& gain,
                                              const Tensor& /*inverse_rms*/) {
  return {empty_like_rows(sum), at::empty_like(gain)};
}

constexpr Operation<norm_meta> kNorm("attnres::add_rms_norm_fused");
constexpr Operation<norm_backward_meta> kNormBackward("attnres::add_rms_norm_fused_backward");

class AddRmsNormFunction : public torch::autograd::Function<AddRmsNormFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& state,
                               const std::optional<Tensor>& pending, const Tensor& gain,
                               double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [sum, normalized, inverse_rms] =
        kNorm->call(state, pending, gain, eps, /*for_backward=*/true);
    context->save_for_backward({pending ? sum : state, gain, inverse_rms});
    context->saved_data["added"] = pending.has_value();
    context->mark_non_differentiable(pending ? variable_list{inverse_rms}
                                             : variable_list{sum, inverse_rms});
    context->set_materialize_grads(false);
    return {sum, normalized, inverse_rms};
  }

  // The gradients of the state, the pending output, the gain and eps.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined() && !grads[1].defined()) return variable_list(4);
    const variable_list saved = context->get_saved_variables();
    const Tensor &sum = saved[0], &gain = saved[1], &inverse_rms = saved[2];
    const auto [grad_sum, grad_gain] =
        kNormBackward->call(grads[1].defined() ? grads[1] : at::zeros_like(sum), given(grads[0]),
                            sum, gain, inverse_rms);
    const bool added = context->saved_data["added"].toBool();
    return {grad_sum, added ? grad_sum : Tensor(), grad_gain, Tensor()};
  }
};

NormResult norm_autograd(const Tensor& state, const std::optional<Tensor>& pending,
                         const Tensor& gain, double eps, bool for_backward) {
  require_untransformed("add_rms_norm_fused", in_one_list(state, pending, gain));
  if (for_backward) {
    const variable_list results = AddRmsNormFunction::apply(state, pending, gain, eps);
    return {results[0], results[1], results[2]};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kNorm->call(state, pending, gain, eps, for_backward);
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps) {
  check_norm_inputs(x, std::nullopt, gain);
  if (!has_row_kernel(x) || is_transformed({x, gain})) return rms_norm_composed(x, gain, eps);
  return std::get<1>(kNorm->call(x, std::nullopt, gain, eps, records({x, gain})));
}

AddedAndNormalized add_rms_norm(const Tensor& state, const Tensor& pending, const Tensor& gain,
                                double eps) {
  check_norm_inputs(state, pending, gain);
  if (!has_row_kernel(state) || is_transformed({state, pending, gain})) {
    return add_rms_norm_composed(state, pending, gain, eps);
  }
  const auto [sum, normalized, inverse_rms] =
      kNorm->call(state, pending, gain, eps, records({state, pending, gain}));
  return {sum, normalized};
}

namespace {

std::tuple<Tensor, Tensor> sum_and_norm(const Tensor& state, const Tensor& pending,
                                        const Tensor& gain, double eps) {
  const auto [sum, normalized] = add_rms_norm(state, pending, gain, eps);
  return {sum, normalized};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("rms_norm(Tensor x, Tensor gain, float eps) -> Tensor", &rms_norm);
  m.def(
      "add_rms_norm(Tensor state, Tensor pending, Tensor gain, float eps)"
      " -> (Tensor sum, Tensor normalized)",
      &sum_and_norm);
  m.def(
      "add_rms_norm_fused(Tensor state, Tensor? pending, Tensor gain, float eps,"
      " bool for_backward) -> (Tensor sum, Tensor normalized, Tensor inverse_rms)");
  m.def(
      "add_rms_norm_fused_backward(Tensor grad_normalized, Tensor? grad_sum, Tensor sum,"
      " Tensor gain, Tensor inverse_rms) -> (Tensor grad_sum, Tensor grad_gain)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("add_rms_norm_fused", &norm_meta);
  m.impl("add_rms_norm_fused_backward", &norm_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("rms_norm", &rms_norm);
  m.impl("add_rms_norm", &sum_and_norm);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("add_rms_norm_fused", &norm_autograd);
  implement_once_differentiable(m, {"add_rms_norm_fused_backward"});
}

}  // namespace attnres
