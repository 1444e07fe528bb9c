#include "attnres/support/parameters.h"

#include <ATen/ops/empty.h>

#include "attnres/support/error.h"
#include "attnres/support/random.h"

namespace attnres {

bool has_weight_decay(ParameterKind kind) {
  return kind == ParameterKind::matrix || kind == ParameterKind::head;
}

at::Tensor ParameterRegistry::add(int site, const std::string& role, ParameterKind kind,
                                  at::IntArrayRef shape, Init init) {
  require(find(site, role) == nullptr, "parameter {} of site {} is defined twice", role, site);
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(at::kDouble));
  double* data = tensor.mutable_data_ptr<double>();
  const RandomStream random(seed_, fmt::format("parameter.{}.{}", site, role));
  for (int64_t i = 0; i < tensor.numel(); ++i) {
    data[i] = init.kind == Init::Kind::normal ? init.value * random.normal(i) : init.value;
  }
  tensor = tensor.to(dtype_);
  tensor.set_requires_grad(true);
  parameters_.push_back({site, role, kind, tensor});
  return tensor;
}

const Parameter* ParameterRegistry::find(int site, const std::string& role) const {
  for (const Parameter& p : parameters_) {
    if (p.site == site && p.role == role) return &p;
  }
  return nullptr;
}

int64_t ParameterRegistry::count() const {
  int64_t total = 0;
  for (const Parameter& p : parameters_) total += p.tensor.numel();
  return total;
}

}  // namespace attnres
