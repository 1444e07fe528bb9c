#include "attnres/layers/product_weight.h"

#include <utility>

#include "attnres/ops/packed_weight/packed_weight.h"

namespace attnres {

ProductWeight::ProductWeight(const Parameter* parameter) {
  if (parameter == nullptr) return;
  *this = ProductWeight(parameter->tensor, {parameter->tensor});
  packed_ = parameter->packed;
}

ProductWeight::ProductWeight(at::Tensor joined, std::vector<at::Tensor> parameters)
    : whole_(std::move(joined)),
      parameters_(std::move(parameters)),
      copy_(std::make_shared<VersionedCopy>()) {}

MapWeight ProductWeight::for_map_of(const at::Tensor& x) const {
  if (packed_.defined()) return MapWeight(whole_, packed_);
  return {whole_, values(x.scalar_type())};
}

int64_t ProductWeight::version() const {
  int64_t version = 0;
  for (const at::Tensor& parameter : parameters_) version += parameter._version();
  return version;
}

at::Tensor ProductWeight::values(at::ScalarType dtype) const {
  if (whole_.scalar_type() == dtype && !packed_.defined()) return whole_;
  return copy_->get(dtype, version(), [&] {
    return packed_.defined() ? unpack_weight(packed_).to(dtype) : whole_.detach().to(dtype);
  });
}

}  // namespace attnres
