#include "attnres/ops/once_differentiable.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using torch::autograd::variable_list;

// "swiglu" of "attnres::swiglu_fused_backward".
std::string public_name(std::string name) {
  name.erase(0, name.rfind(':') + 1);
  for (const std::string suffix : {"_backward", "_fused"}) {
    if (name.ends_with(suffix)) name.resize(name.size() - suffix.size());
  }
  return name;
}

[[noreturn]] void refuse_second_derivative(const std::string& operation) {
  const std::string composed = operation + "_composed";
  const bool has_composed =
      c10::Dispatcher::singleton().findSchema({"attnres::" + composed, ""}).has_value();
  fail(
      "{}: its gradient cannot be differentiated again; {}take the first gradient without "
      "create_graph",
      operation, has_composed ? "use " + composed + ", or " : "");
}

class NotDifferentiableAgain : public torch::autograd::Node {
 public:
  NotDifferentiableAgain(std::string operation, torch::autograd::edge_list&& next_edges)
      : Node(std::move(next_edges)), operation_(std::move(operation)) {}
  std::string name() const override { return "NotDifferentiableAgain"; }

  variable_list apply(variable_list&&) override { refuse_second_derivative(operation_); }

 private:
  std::string operation_;
};

// The tensors among the last `count` values of a stack, in lists or by themselves.
variable_list last_tensors(const torch::jit::Stack& stack, size_t count) {
  variable_list tensors;
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    if (stack[i].isTensor()) tensors.push_back(stack[i].toTensor());
    if (!stack[i].isTensorList()) continue;
    for (const at::Tensor& tensor : stack[i].toTensorVector()) tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace

void once_differentiable(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const variable_list inputs = last_tensors(*stack, operation.schema().arguments().size());
  if (is_transformed(inputs)) refuse_second_derivative(public_name(operation.schema().name()));
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    operation.callBoxed(stack);
  }
  if (!records(inputs)) return;
  const auto node = std::make_shared<NotDifferentiableAgain>(
      public_name(operation.schema().name()), torch::autograd::collect_next_edges(inputs));
  for (const at::Tensor& result : last_tensors(*stack, operation.schema().returns().size())) {
    if (result.defined()) torch::autograd::set_history(result, node);
  }
}

void require_first_derivative(const char* operation) {
  if (at::GradMode::is_enabled()) refuse_second_derivative(operation);
}

}  // namespace attnres
