#include "attnres/layers/product_weight.h"

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <utility>

#include "attnres/ops/packed_weight/packed_weight.h"

namespace attnres {

struct ProductWeight::Copy {
  std::mutex mutex;
  at::Tensor values;
  int64_t version = 0;  // of the weight that they are of
};

ProductWeight::ProductWeight(const Parameter* parameter) {
  if (parameter == nullptr) return;
  *this = ProductWeight(parameter->tensor, {parameter->tensor});
  packed_ = parameter->packed;
}

ProductWeight::ProductWeight(at::Tensor joined, std::vector<at::Tensor> parameters)
    : whole_(std::move(joined)),
      parameters_(std::move(parameters)),
      copy_(std::make_shared<Copy>()) {}

MapWeight ProductWeight::for_map_of(const at::Tensor& x) const {
  if (packed_.defined()) return MapWeight(whole_, packed_);
  return {whole_, values(x.scalar_type())};
}

at::Tensor ProductWeight::values(at::ScalarType dtype) const {
  if (whole_.scalar_type() == dtype && !packed_.defined()) return whole_;
  int64_t version = 0;  // grows with that of any part
  for (const at::Tensor& parameter : parameters_) version += parameter._version();
  const std::lock_guard lock(copy_->mutex);
  at::Tensor& values = copy_->values;
  if (!values.defined() || values.scalar_type() != dtype || copy_->version != version) {
    const at::NoGradGuard not_recording;
    // A new tensor: a backward may still want the old one.
    values = packed_.defined() ? unpack_weight(packed_).to(dtype) : whole_.detach().to(dtype);
    copy_->version = version;
  }
  return values;
}

}  // namespace attnres
