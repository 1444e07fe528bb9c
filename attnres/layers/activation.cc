#include "attnres/layers/activation.h"

#include <ATen/ATen.h>

#include "attnres/ops/swiglu/swiglu.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// x for small x, and within -bound .. bound.
at::Tensor bounded(const at::Tensor& x, double bound) {
  return bound * at::tanh(x / bound);
}

}  // namespace

void Activation::check(const std::string& path) const {
  require_usage(type == "silu" || type == "situ",
                "{}.type: expected \"silu\" or \"situ\", got \"{}\"", path, type);
  require_usage(beta > 0, "{}.beta: expected more than 0, got {}", path, beta);
}

at::Tensor Activation::operator()(const at::Tensor& gate, const at::Tensor& up) const {
  if (type == "silu") return swiglu(gate, up);
  const at::ScalarType dtype = gate.scalar_type(), wide = compute_dtype(gate);
  const at::Tensor g = gate.to(wide), u = up.to(wide);
  const at::Tensor y =
      bounded(g, beta) * at::sigmoid(g) * (linear_beta > 0 ? bounded(u, linear_beta) : u);
  return y.to(dtype);
}

}  // namespace attnres
