#include "attnres/ops/causal_attention/causal_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sigmoid.h>
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

// o, and the logarithm of each softmax's normaliser [B, H, T].
using AttentionResult = std::tuple<Tensor, Tensor>;
void check_attention_inputs(const Tensor& q, const Tensor& k, const Tensor& v, int64_t window,
                            const Tensor& sinks) {
  if (q.dim() != 4 || k.dim() != 4 || v.dim() != 4 || k.size(2) < 1 || q.size(0) != k.size(0) ||
      q.size(1) > k.size(1) || q.size(2) % k.size(2) != 0 || q.size(3) != k.size(3) ||
      k.sizes().slice(0, 3) != v.sizes().slice(0, 3) || q.scalar_type() != k.scalar_type() ||
      q.scalar_type() != v.scalar_type() || window < 0) {
    fail(
        "causal attention: expected q [B, T, H, K], k [B, N, G, K] and v [B, N, G, V] of one dtype "
        "with N at least T and G a divisor of H, and a window of 0 or more; they are {}, {}, {} "
        "and {}",
        shape_of(q), shape_of(k), shape_of(v), window);
  }
  require_one_device("causal attention", q, k, v);
  if (!sinks.defined()) return;
  require(sinks.dim() == 1 && sinks.size(0) == q.size(2),
          "causal attention: of {} heads expected sinks [{}]; they are {}", q.size(2), q.size(2),
          shape_of(sinks));
  require_one_device("causal attention", q, sinks);
}

AttentionResult attention_meta(const Tensor& q, const Tensor&, const Tensor&, int64_t /*window*/) {
  return {empty_like_rows(q), at::empty_symint({q.sym_size(0), q.sym_size(2), q.sym_size(1)},
                                               q.options().dtype(at::kFloat))};
}

// The gradients of q, k and v.
std::tuple<Tensor, Tensor, Tensor> attention_backward_meta(
    const Tensor& /*grad_o*/, const Tensor& q, const Tensor& k, const Tensor& v,
    const Tensor& /*o*/, const Tensor& /*lse*/, const std::optional<Tensor>& /*grad_lse*/,
    int64_t /*window*/) {
  return {empty_like_rows(q), empty_like_rows(k), empty_like_rows(v)};
}

constexpr Operation<attention_meta> kAttention("attnres::tiled_causal_attention");
constexpr Operation<attention_backward_meta> kAttentionBackward(
    "attnres::tiled_causal_attention_backward");

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, int64_t window) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [o, lse] = kAttention->call(q, k, v, window);
    context->save_for_backward({q, k, v, o, lse});
    context->saved_data["window"] = window;
    context->set_materialize_grads(false);
    return {o, lse};
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const Tensor grad_o = grads[0].defined() ? grads[0] : at::zeros_like(saved[3]);
    const auto [grad_q, grad_k, grad_v] =
        kAttentionBackward->call(grad_o, saved[0], saved[1], saved[2], saved[3], saved[4],
                                 given(grads[1]), context->saved_data["window"].toInt());
    return {grad_q, grad_k, grad_v, Tensor()};
  }
};

AttentionResult attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v,
                                   int64_t window) {
  require_untransformed("tiled_causal_attention", {q, k, v});
  const variable_list results = AttentionFunction::apply(q, k, v, window);
  return {results[0], results[1]};
}

}  // namespace

Tensor tiled_causal_attention(const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGK,
                              int64_t window, const Tensor& sinks_H) {
  check_attention_inputs(q_BTHK, k_BNGK, v_BNGK, window, sinks_H);
  if (!can_tile_attention(q_BTHK, k_BNGK, v_BNGK)) {
    return causal_attention_composed(q_BTHK, k_BNGK, v_BNGK, window, sinks_H);
  }
  const auto [o_BTHK, lse_BHT] = kAttention->call(q_BTHK, k_BNGK, v_BNGK, window);
  if (!sinks_H.defined()) return o_BTHK;
  // e^lse / (e^lse + e^z) of what the softmax without the sink gives.
  const Tensor of_keys_BTH = at::sigmoid(lse_BHT.transpose(1, 2) - sinks_H.to(lse_BHT));
  return o_BTHK * of_keys_BTH.unsqueeze(-1).to(o_BTHK.scalar_type());
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "tiled_causal_attention(Tensor q, Tensor k, Tensor v, int window=0)"
      " -> (Tensor o, Tensor lse)");
  m.def(
      "tiled_causal_attention_backward(Tensor grad_o, Tensor q, Tensor k, Tensor v, Tensor o,"
      " Tensor lse, Tensor? grad_lse=None, int window=0)"
      " -> (Tensor grad_q, Tensor grad_k, Tensor grad_v)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("tiled_causal_attention", &attention_meta);
  m.impl("tiled_causal_attention_backward", &attention_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("tiled_causal_attention", &attention_autograd);
  implement_once_differentiable(m, {"tiled_causal_attention_backward"});
}

}  // namespace attnres
