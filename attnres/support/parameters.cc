#include "attnres/support/parameters.h"

#include <ATen/ops/empty.h>

#include "attnres/support/error.h"

namespace attnres {

Init Init::constant(double value) {
  return {[value](const RandomStream&, int64_t) { return value; }};
}

Init Init::normal(double standard_deviation) {
  return {[standard_deviation](const RandomStream& random, int64_t i) {
    return standard_deviation * random.normal(i);
  }};
}

Init Init::uniform(double bound) {
  return {[bound](const RandomStream& random, int64_t i) {
    return bound * (2 * random.uniform(i) - 1);
  }};
}

Init Init::by_index(std::function<double(int64_t i)> value) {
  return {[value = std::move(value)](const RandomStream&, int64_t i) { return value(i); }};
}

bool has_weight_decay(ParameterKind kind) {
  return kind == ParameterKind::matrix || kind == ParameterKind::head;
}

bool is_differentiated(ParameterKind kind) {
  return kind != ParameterKind::router_bias;
}

at::Tensor ParameterRegistry::add(int site, const std::string& role, ParameterKind kind,
                                  at::IntArrayRef shape, Init init) {
  require(find(site, role) == nullptr, "parameter {} of site {} is defined twice", role, site);
  at::Tensor tensor = device_.is_meta() ? at::empty(shape, at::TensorOptions(device_).dtype(dtype_))
                                        : initial_values(site, role, shape, init);
  tensor.set_requires_grad(is_differentiated(kind));
  parameters_.push_back({site, role, kind, tensor});
  return tensor;
}

at::Tensor ParameterRegistry::initial_values(int site, const std::string& role,
                                             at::IntArrayRef shape, const Init& init) const {
  const at::Tensor values = at::empty(shape, at::TensorOptions().dtype(at::kDouble));
  double* data = values.mutable_data_ptr<double>();
  const RandomStream random(seed_, fmt::format("parameter.{}.{}", site, role));
  for (int64_t i = 0; i < values.numel(); ++i) {
    data[i] = init.value(random, i);
  }
  return values.to(dtype_);
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
