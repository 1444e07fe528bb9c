#include "attnres/ops/matmul/matmul.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/mm.h>
#include <torch/csrc/autograd/custom_function.h>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

Tensor rows_of(const Tensor& x) {
  return x.reshape({-1, x.size(-1)});
}

Tensor forward_product(const Tensor& x, const Tensor& weight) {
  std::vector<int64_t> shape = x.sizes().vec();
  shape.back() = weight.size(0);
  return at::mm(rows_of(x), weight.t()).view(shape);
}

void check_inputs(const Tensor& x, const Tensor& weight) {
  if (x.dim() < 1 || weight.dim() != 2 || x.size(-1) != weight.size(1)) {
    fail("linear map: expected x [..., K] and a weight [N, K]; they are {} and {}", shape_of(x),
         shape_of(weight));
  }
  require(x.scalar_type() == weight.scalar_type(),
          "linear map: x and the weight must share a dtype; they are {} and {}",
          c10::toString(x.scalar_type()), c10::toString(weight.scalar_type()));
}

class LinearFunction : public torch::autograd::Function<LinearFunction> {
 public:
  static variable_list forward(AutogradContext* context, const Tensor& x, at::TensorList weights) {
    at::AutoDispatchBelowADInplaceOrView below_autograd;
    variable_list outputs, saved = {x};
    for (const Tensor& weight : weights) {
      outputs.push_back(forward_product(x, weight));
      saved.push_back(weight);
    }
    context->save_for_backward(saved);
    context->set_materialize_grads(false);
    return outputs;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require(
        !at::GradMode::is_enabled(),
        "linear map: its gradient cannot be differentiated again; take it without create_graph");
    const variable_list saved = context->get_saved_variables();
    const Tensor& x = saved[0];
    variable_list results(saved.size());
    Tensor grad_x;
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i].defined()) continue;
      const Tensor& weight = saved[1 + i];
      const Tensor grad = rows_of(gradients[i]);
      if (context->needs_input_grad(0)) {
        if (grad_x.defined()) {
          grad_x.addmm_(grad, weight);
        } else {
          grad_x = at::mm(grad, weight);
        }
      }
      if (context->needs_input_grad(1 + i)) results[1 + i] = at::mm(grad.t(), rows_of(x));
    }
    if (grad_x.defined()) results[0] = grad_x.view(x.sizes());
    return results;
  }
};

}  // namespace

std::vector<Tensor> linear_maps(const Tensor& x, at::TensorList weights) {
  variable_list inputs = {x};
  for (const Tensor& weight : weights) {
    check_inputs(x, weight);
    inputs.push_back(weight);
  }
  if (records(inputs)) return LinearFunction::apply(x, weights);
  std::vector<Tensor> outputs;
  for (const Tensor& weight : weights) outputs.push_back(forward_product(x, weight));
  return outputs;
}

Tensor linear_map(const Tensor& x, const Tensor& weight) {
  check_inputs(x, weight);
  if (records({x, weight})) return LinearFunction::apply(x, weight).front();
  return forward_product(x, weight);
}

}  // namespace attnres
