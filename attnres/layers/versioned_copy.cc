#include "attnres/layers/versioned_copy.h"

#include <ATen/core/grad_mode.h>

namespace attnres {

at::Tensor VersionedCopy::get(at::ScalarType dtype, int64_t version,
                              const std::function<at::Tensor()>& make) {
  const std::lock_guard lock(mutex_);
  if (!values_.defined() || values_.scalar_type() != dtype || version_ != version) {
    const at::NoGradGuard not_recording;
    // A new tensor: a backward may still want the old one.
    values_ = make();
    version_ = version;
  }
  return values_;
}

}  // namespace attnres
