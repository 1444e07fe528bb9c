#include "attnres/ops/swiglu/swiglu.h"

#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attnres/ops/swiglu/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class SwigluFunction : public torch::autograd::Function<SwigluFunction> {
 public:
  static Tensor forward(AutogradContext* context, const Tensor& gate, const Tensor& up) {
    const Tensor gate_rows = gate.contiguous(), up_rows = up.contiguous();
    const Tensor y = empty_like_rows(gate);
    with_storage_type(gate.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      const kernel::SwigluForward<Storage> op{data<const Storage>(gate_rows),
                                              data<const Storage>(up_rows), data<Storage>(y)};
      parallel_over_tokens(y.numel(), 1, [&](int64_t first, int64_t last) {
        kernel::swiglu_forward(op, first, last);
      });
    });
    context->save_for_backward({gate_rows, up_rows});
    return y;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require(!at::GradMode::is_enabled(),
            "swiglu: its gradient cannot be differentiated again; take it without create_graph");
    const variable_list saved = context->get_saved_variables();
    const Tensor grad_y = gradients[0].contiguous();
    const Tensor grad_gate = empty_like_rows(grad_y), grad_up = empty_like_rows(grad_y);
    with_storage_type(grad_y.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      const kernel::SwigluBackward<Storage> op{
          data<const Storage>(saved[0]), data<const Storage>(saved[1]), data<const Storage>(grad_y),
          data<Storage>(grad_gate), data<Storage>(grad_up)};
      parallel_over_tokens(grad_y.numel(), 1, [&](int64_t first, int64_t last) {
        kernel::swiglu_backward(op, first, last);
      });
    });
    return {grad_gate, grad_up};
  }
};

}  // namespace

Tensor swiglu(const Tensor& gate, const Tensor& up) {
  require(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
          "swiglu: gate and up must have one shape and dtype");
  if (!has_kernel(gate) || !has_kernel(up)) return at::mul(at::silu(gate), up);
  return SwigluFunction::apply(gate, up);
}

}  // namespace attnres
