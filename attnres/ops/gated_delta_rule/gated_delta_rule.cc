#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <sstream>
#include <tuple>
#include <vector>

#include "attnres/ops/gated_delta_rule/chunked.h"
#include "attnres/ops/gated_delta_rule/prepare.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// o and the state; what the chunks keep for the backward, nothing where no gradient will be wanted.
using DeltaRuleResult = std::tuple<Tensor, Tensor, std::vector<Tensor>>;
// The gradients of the inputs, in their order.
using DeltaRuleGradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

void check_delta_rule_input(const char* name, const Tensor& input, const Tensor& q,
                            c10::SymIntArrayRef expected) {
  if (input.sym_sizes() != expected) {
    std::ostringstream wanted;
    wanted << expected;
    fail("gated_delta_rule: {} must be {}, but is {}", name, wanted.str(), shape_of(input));
  }
  if (input.device() != q.device()) {
    fail("gated_delta_rule: {} is on {}, q on {}; move it there", name, input.device().str(),
         q.device().str());
  }
}

DeltaRuleResult delta_rule_any(const Tensor& q, const Tensor& k, const Tensor& v,
                               const Tensor& log_decay, const Tensor& beta, const Tensor& state,
                               bool for_backward) {
  const ChunkedDeltaRule result =
      chunked_delta_rule({q, k, v, log_decay, beta, state}, for_backward);
  return {result.o, result.state, result.saved};
}

DeltaRuleResult delta_rule_meta(const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& log_decay, const Tensor& beta, const Tensor& state,
                                bool for_backward) {
  std::vector<Tensor> saved;
  if (for_backward) saved = allocate_chunked_saved({q, k, v, log_decay, beta, state});
  return {empty_like_rows(v), empty_like_rows(state), saved};
}

DeltaRuleGradients delta_rule_backward_any(const Tensor& grad_o, const Tensor& grad_state,
                                           const Tensor& q, const Tensor& k, const Tensor& v,
                                           const Tensor& log_decay, const Tensor& beta,
                                           const Tensor& state, at::TensorList saved) {
  const GatedDeltaRuleInputs grad =
      chunked_delta_rule_backward({q, k, v, log_decay, beta, state}, saved, grad_o, grad_state);
  return {grad.q, grad.k, grad.v, grad.log_decay, grad.beta, grad.state};
}

DeltaRuleGradients delta_rule_backward_meta(const Tensor& /*grad_o*/, const Tensor& /*grad_state*/,
                                            const Tensor& q, const Tensor& k, const Tensor& v,
                                            const Tensor& log_decay, const Tensor& beta,
                                            const Tensor& state, at::TensorList /*saved*/) {
  return {empty_like_rows(q),         empty_like_rows(k),    empty_like_rows(v),
          empty_like_rows(log_decay), empty_like_rows(beta), empty_like_rows(state)};
}

constexpr Operation<delta_rule_meta> kDeltaRule("attnres::gated_delta_rule_fused");
constexpr Operation<delta_rule_backward_meta> kDeltaRuleBackward(
    "attnres::gated_delta_rule_fused_backward");

class GatedDeltaRuleFunction : public torch::autograd::Function<GatedDeltaRuleFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                               const Tensor& state) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [o, new_state, chunks] =
        kDeltaRule->call(q, k, v, log_decay, beta, state, /*for_backward=*/true);
    context->save_for_backward(in_one_list(q, k, v, log_decay, beta, state, chunks));
    context->mark_non_differentiable(chunks);
    context->set_materialize_grads(false);
    return in_one_list(o, new_state, chunks);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    if (!grads[0].defined() && !grads[1].defined()) return variable_list(6);
    const variable_list in = context->get_saved_variables();
    const auto [q, k, v, log_decay, beta, state] =
        kDeltaRuleBackward->call(grads[0].defined() ? grads[0] : at::zeros_like(in[2]),
                                 grads[1].defined() ? grads[1] : at::zeros_like(in[5]), in[0],
                                 in[1], in[2], in[3], in[4], in[5], at::TensorList(in).slice(6));
    return {q, k, v, log_decay, beta, state};
  }
};

DeltaRuleResult delta_rule_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                                    const Tensor& log_decay, const Tensor& beta,
                                    const Tensor& state, bool for_backward) {
  require_untransformed("gated_delta_rule_fused", {q, k, v, log_decay, beta, state});
  if (for_backward) {
    const variable_list all = GatedDeltaRuleFunction::apply(q, k, v, log_decay, beta, state);
    return {all[0], all[1], variable_list(all.begin() + 2, all.end())};
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kDeltaRule->call(q, k, v, log_decay, beta, state, for_backward);
}

GatedDeltaRuleOutput run(const GatedDeltaRuleInputs& in, bool for_backward) {
  const auto [o, state, saved] =
      kDeltaRule->call(in.q, in.k, in.v, in.log_decay, in.beta, in.state, for_backward);
  return {o, state};
}

}  // namespace

GatedDeltaRuleInputs prepare_delta_rule(const GatedDeltaRuleInputs& in) {
  require(in.q.dim() == 4 && in.q.sym_numel() > 0,
          "gated_delta_rule: q must be [B, T, H, K], none of them 0");
  require(in.v.dim() == 4, "gated_delta_rule: v must be [B, T, H, V]");
  const auto B = in.q.sym_size(0), T = in.q.sym_size(1), H = in.q.sym_size(2), K = in.q.sym_size(3),
             V = in.v.sym_size(3);
  check_delta_rule_input("k", in.k, in.q, {B, T, H, K});
  check_delta_rule_input("v", in.v, in.q, {B, T, H, V});
  check_delta_rule_input("log_decay", in.log_decay, in.q, {B, T, H, K});
  check_delta_rule_input("beta", in.beta, in.q, {B, T, H});
  if (in.state.defined()) check_delta_rule_input("state", in.state, in.q, {B, H, K, V});
  const at::ScalarType dtype = compute_dtype(in.q);
  const auto options = in.q.options().dtype(dtype).requires_grad(false);
  return {
      .q = in.q.to(dtype),
      .k = in.k.to(dtype),
      .v = in.v,
      .log_decay = in.log_decay.to(dtype),
      .beta = in.beta.to(dtype),
      .state = in.state.defined() ? in.state.to(dtype) : at::zeros_symint({B, H, K, V}, options)};
}

GatedDeltaRuleOutput gated_delta_rule(const GatedDeltaRuleInputs& inputs) {
  if (is_transformed({inputs.q, inputs.k, inputs.v, inputs.log_decay, inputs.beta, inputs.state})) {
    return gated_delta_rule_recurrent(inputs);
  }
  const GatedDeltaRuleInputs in = prepare_delta_rule(inputs);
  return run(in, records({in.q, in.k, in.v, in.log_decay, in.beta, in.state}));
}

GatedDeltaRuleOutput gated_delta_rule_chunked(const GatedDeltaRuleInputs& inputs) {
  return run(prepare_delta_rule(inputs), /*for_backward=*/true);
}

namespace {

std::tuple<Tensor, Tensor> delta_rule(const Tensor& q, const Tensor& k, const Tensor& v,
                                      const Tensor& log_decay, const Tensor& beta,
                                      const std::optional<Tensor>& state) {
  const auto [o, new_state] =
      gated_delta_rule({q, k, v, log_decay, beta, state.value_or(Tensor())});
  return {o, new_state};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "gated_delta_rule(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor beta,"
      " Tensor? state) -> (Tensor o, Tensor state)",
      &delta_rule);
  m.def(
      "gated_delta_rule_fused(Tensor q, Tensor k, Tensor v, Tensor log_decay, Tensor beta,"
      " Tensor state, bool for_backward) -> (Tensor o, Tensor state, Tensor[] saved)");
  m.def(
      "gated_delta_rule_fused_backward(Tensor grad_o, Tensor grad_state, Tensor q, Tensor k,"
      " Tensor v, Tensor log_decay, Tensor beta, Tensor state, Tensor[] saved)"
      " -> (Tensor grad_q, Tensor grad_k, Tensor grad_v, Tensor grad_log_decay, Tensor grad_beta,"
      " Tensor grad_state)");
}

TORCH_LIBRARY_IMPL(attnres, CompositeExplicitAutograd, m) {
  m.impl("gated_delta_rule_fused", &delta_rule_any);
  m.impl("gated_delta_rule_fused_backward", &delta_rule_backward_any);
}
TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("gated_delta_rule_fused", &delta_rule_meta);
  m.impl("gated_delta_rule_fused_backward", &delta_rule_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("gated_delta_rule", &delta_rule);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("gated_delta_rule_fused", &delta_rule_autograd);
  implement_once_differentiable(m, {"gated_delta_rule_fused_backward"});
}

}  // namespace attnres
