// Shows profilers an operation that does not go through torch's dispatcher. Costs nothing while
// nobody looks.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

namespace attnres {

class RecordedOperation {
 public:
  // Undefined tensors are left out, here and below.
  RecordedOperation(const char* name, at::TensorList read);
  ~RecordedOperation();
  RecordedOperation(const RecordedOperation&) = delete;
  RecordedOperation& operator=(const RecordedOperation&) = delete;

  void wrote(at::TensorList tensors);

 private:
  struct Record;
  std::unique_ptr<Record> record_;  // null while nobody looks
};

}  // namespace attnres
