#include "attnres/ops/situ/situ.h"

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

Tensor situ_meta(const Tensor& gate, const Tensor& /*up*/, double /*beta*/,
                 double /*linear_beta*/) {
  return empty_like_rows(gate);
}

// The gradients of gate and of up.
std::tuple<Tensor, Tensor> situ_backward_meta(const Tensor& /*grad_y*/, const Tensor& gate,
                                              const Tensor& up, double /*beta*/,
                                              double /*linear_beta*/) {
  return {empty_like_rows(gate), empty_like_rows(up)};
}

constexpr Operation<situ_meta> kSitu("attnres::situ_fused");
constexpr Operation<situ_backward_meta> kSituBackward("attnres::situ_fused_backward");

class SituFunction : public torch::autograd::Function<SituFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up, double beta,
                        double linear_beta) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward({gate, up});
    context->saved_data["beta"] = beta;
    context->saved_data["linear_beta"] = linear_beta;
    return kSitu->call(gate, up, beta, linear_beta);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto [grad_gate, grad_up] =
        kSituBackward->call(grads[0], saved[0], saved[1], context->saved_data["beta"].toDouble(),
                            context->saved_data["linear_beta"].toDouble());
    return {grad_gate, grad_up, Tensor(), Tensor()};
  }
};

Tensor situ_autograd(const Tensor& gate, const Tensor& up, double beta, double linear_beta) {
  require_untransformed("situ_fused", {gate, up});
  return SituFunction::apply(gate, up, beta, linear_beta);
}

}  // namespace

Tensor situ(const Tensor& gate, const Tensor& up, double beta, double linear_beta) {
  if (gate.sym_sizes() != up.sym_sizes() || gate.scalar_type() != up.scalar_type()) {
    fail("situ: gate is {} {}, up {} {}; they must be alike", c10::toString(gate.scalar_type()),
         shape_of(gate), c10::toString(up.scalar_type()), shape_of(up));
  }
  require_one_device("situ", gate, up);
  if (!has_kernel(gate) || is_transformed({gate, up})) {
    return situ_composed(gate, up, beta, linear_beta);
  }
  return call_operation(*kSitu, gate, up, beta, linear_beta);
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def("situ(Tensor gate, Tensor up, float beta, float linear_beta) -> Tensor", &situ);
  m.def("situ_fused(Tensor gate, Tensor up, float beta, float linear_beta) -> Tensor");
  m.def(
      "situ_fused_backward(Tensor grad_y, Tensor gate, Tensor up, float beta, float linear_beta)"
      " -> (Tensor grad_gate, Tensor grad_up)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("situ_fused", &situ_meta);
  m.impl("situ_fused_backward", &situ_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("situ", &situ);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("situ_fused", &situ_autograd);
  implement_once_differentiable(m, {"situ_fused_backward"});
}

}  // namespace attnres
