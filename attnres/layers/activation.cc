#include "attnres/layers/activation.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>

#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"
#include "attnres/ops/tensors.h"

namespace attnres {

namespace {

at::Tensor swiglu_oai(const at::Tensor& gate, const at::Tensor& up, double limit) {
  constexpr double kSlope = 1.702;  // at which x sigmoid(kSlope x) is close to GELU
  const at::ScalarType wide = compute_dtype(gate);
  const at::Tensor g = at::clamp_max(gate.to(wide), limit),
                   u = at::clamp(up.to(wide), -limit, limit);
  return (g * at::sigmoid(kSlope * g) * (u + 1)).to(gate.scalar_type());
}

}  // namespace

at::Tensor Activation::operator()(const at::Tensor& gate, const at::Tensor& up) const {
  if (type == "silu") return swiglu(gate, up);
  if (is_situ()) return situ(gate, up, beta, linear_beta);
  if (type == "swiglu_oai") return swiglu_oai(gate, up, limit);
  return at::mul(at::gelu(gate, "tanh"), up);
}

int Activation::kept() const {
  // gate, up, and what comes of them; of those that are composed the steps between too.
  if (type == "swiglu_oai") return 9;
  return type == "gelu_tanh" ? 4 : 3;
}

}  // namespace attnres
