#include "attnres/ops/recorded_operation.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

#include <utility>
#include <vector>

namespace attnres {
namespace {

std::vector<c10::IValue> values_of(at::TensorList tensors) {
  std::vector<c10::IValue> values;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) values.emplace_back(tensor);
  }
  return values;
}

}  // namespace

struct RecordedOperation::Record {
  Record(at::StepCallbacks&& callbacks, const char* name, at::TensorList tensors,
         std::optional<int64_t> passes)
      : read(values_of(tensors)), function(std::move(callbacks)) {
    if (passes) read.emplace_back(*passes);
    function.before(name, &read);
  }

  std::vector<c10::IValue> read;  // `function` keeps a reference
  at::RecordFunction function;
};

RecordedOperation::RecordedOperation(const char* name,
                                     c10::function_ref<std::vector<at::Tensor>()> read,
                                     std::optional<int64_t> passes) {
  auto callbacks = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION);
  if (callbacks.has_value()) {
    record_ = std::make_unique<Record>(std::move(*callbacks), name, read(), passes);
  }
}

RecordedOperation::~RecordedOperation() = default;

void RecordedOperation::wrote(at::TensorList tensors) {
  if (record_ && record_->function.needsOutputs()) record_->function.setOutputs(values_of(tensors));
}

}  // namespace attnres
