#include "attnres/ops/once_differentiable.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/core/stack.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

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

// The tensor that a value is, or those of a list.
void append_tensors(const c10::IValue& value, variable_list& to) {
  if (value.isTensor()) to.push_back(value.toTensor());
  if (!value.isTensorList()) return;
  for (const at::Tensor& tensor : value.toTensorVector()) to.push_back(tensor);
}

// The tensors among the last `count` values of a stack.
variable_list last_tensors(const torch::jit::Stack& stack, size_t count) {
  variable_list tensors;
  for (const c10::IValue& value : torch::jit::last(stack, count)) append_tensors(value, tensors);
  return tensors;
}

// Those of an operation's arguments that it writes to.
variable_list written_tensors(const c10::FunctionSchema& schema, const torch::jit::Stack& stack) {
  variable_list tensors;
  const size_t count = schema.arguments().size();
  for (size_t i = 0; i < count; ++i) {
    const c10::AliasInfo* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      append_tensors(torch::jit::peek(stack, i, count), tensors);
    }
  }
  return tensors;
}

}  // namespace

void once_differentiable(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const c10::FunctionSchema& schema = operation.schema();
  const variable_list inputs = last_tensors(*stack, schema.arguments().size());
  if (is_transformed(inputs)) refuse_second_derivative(public_name(schema.name()));
  variable_list results = written_tensors(schema, *stack);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    operation.callBoxed(stack);
  }
  if (!records(inputs)) return;
  const auto node = std::make_shared<NotDifferentiableAgain>(
      public_name(schema.name()), torch::autograd::collect_next_edges(inputs));
  const variable_list returned = last_tensors(*stack, schema.returns().size());
  results.insert(results.end(), returned.begin(), returned.end());
  for (const at::Tensor& result : results) {
    if (result.defined()) torch::autograd::set_history(result, node);
  }
}

void implement_once_differentiable(torch::Library& autograd,
                                   std::initializer_list<const char*> operations) {
  for (const char* operation : operations) {
    autograd.impl(operation, torch::CppFunction::makeFromBoxedFunction<&once_differentiable>());
  }
}

void require_first_derivative(const char* operation) {
  if (at::GradMode::is_enabled()) refuse_second_derivative(operation);
}

}  // namespace attnres
