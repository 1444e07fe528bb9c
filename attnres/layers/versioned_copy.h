// Numbers derived of parameters, made anew when these have changed.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <mutex>

namespace attnres {

class VersionedCopy {
 public:
  // What `make` gives of this dtype, without a gradient, or gave when the parameters had this
  // version. Threads may ask at once, but not while a parameter changes.
  at::Tensor get(at::ScalarType dtype, int64_t version, const std::function<at::Tensor()>& make);

 private:
  std::mutex mutex_;
  at::Tensor values_;
  int64_t version_ = 0;
};

}  // namespace attnres
