// Shows profilers an operation that does not go through torch's dispatcher. Costs nothing while
// nobody looks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace attnres {

class RecordedOperation {
 public:
  // `read` lists what is read, and is called only where somebody looks. Undefined tensors are left
  // out, here and below. `passes`, multiply-adds for each number read, is shown as the last input
  // where it is given.
  RecordedOperation(const char* name, c10::function_ref<std::vector<at::Tensor>()> read,
                    std::optional<int64_t> passes = {});
  ~RecordedOperation();
  RecordedOperation(const RecordedOperation&) = delete;
  RecordedOperation& operator=(const RecordedOperation&) = delete;

  void wrote(at::TensorList tensors);

 private:
  struct Record;
  std::unique_ptr<Record> record_;  // null while nobody looks
};

}  // namespace attnres
