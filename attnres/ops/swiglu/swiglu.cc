#include "attnres/ops/swiglu/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

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

Tensor swiglu_meta(const Tensor& gate, const Tensor& /*up*/) {
  return empty_like_rows(gate);
}

// The gradients of gate and of up.
std::tuple<Tensor, Tensor> swiglu_backward_meta(const Tensor& /*grad_y*/, const Tensor& gate,
                                                const Tensor& up) {
  return {empty_like_rows(gate), empty_like_rows(up)};
}

constexpr Operation<swiglu_meta> kSwiglu("attnres::swiglu_fused");
constexpr Operation<swiglu_backward_meta> kSwigluBackward("attnres::swiglu_fused_backward");

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({gate, up});
    return kSwiglu->call(gate, up);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [grad_gate, grad_up] = kSwigluBackward->call(grads[0], saved[0], saved[1]);
    return {grad_gate, grad_up};
  }
};

Tensor swiglu_autograd(const Tensor& gate, const Tensor& up) {
  require_untransformed("swiglu_fused", {gate, up});
  return SwigluFunction::apply(gate, up);
}

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  if (gate.sym_sizes() != up.sym_sizes() || gate.scalar_type() != up.scalar_type() ||
      gate.device() != up.device()) {
    fail("swiglu: gate is {}, up {}; they must be alike", described(gate), described(up));
  }
  if (!has_row_kernel(gate) || is_transformed({gate, up})) return swiglu_composed(gate, up);
  return kSwiglu->call(gate, up);
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("swiglu(Tensor gate, Tensor up) -> Tensor", &swiglu);
  m.def("swiglu_fused(Tensor gate, Tensor up) -> Tensor");
  m.def(
      "swiglu_fused_backward(Tensor grad_y, Tensor gate, Tensor up)"
      " -> (Tensor grad_gate, Tensor grad_up)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("swiglu_fused", &swiglu_meta);
  m.impl("swiglu_fused_backward", &swiglu_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("swiglu", &swiglu);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("swiglu_fused", &swiglu_autograd);
  implement_once_differentiable(m, {"swiglu_fused_backward"});
}

}  // namespace attnres
