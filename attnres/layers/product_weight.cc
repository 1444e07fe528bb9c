#include "attnres/layers/product_weight.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <utility>

namespace attnres {

struct ProductWeight::Copy {
  std::mutex mutex;
  at::Tensor values;
  int64_t version = 0;  // of the weight that they are of
};

ProductWeight::ProductWeight(const at::Tensor& parameter) : ProductWeight(parameter, {parameter}) {}

ProductWeight::ProductWeight(at::Tensor joined, std::vector<at::Tensor> parameters)
    : whole_(std::move(joined)),
      parameters_(std::move(parameters)),
      copy_(std::make_shared<Copy>()) {}

at::Tensor ProductWeight::values(at::ScalarType dtype) const {
  if (whole_.scalar_type() == dtype) return whole_;
  int64_t version = 0;  // grows with that of any part
  for (const at::Tensor& parameter : parameters_) version += parameter._version();
  const std::lock_guard lock(copy_->mutex);
  at::Tensor& values = copy_->values;
  if (!values.defined() || values.scalar_type() != dtype || copy_->version != version) {
    const at::NoGradGuard not_recording;
    values = whole_.detach().to(dtype);  // a new tensor: a backward may still want the old one
    copy_->version = version;
  }
  return values;
}

}  // namespace attnres
