#include "attnres/layers/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>

#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"

namespace attnres {

at::Tensor Activation::operator()(const at::Tensor& gate, const at::Tensor& up) const {
  if (type == "silu") return swiglu(gate, up);
  if (is_situ()) return situ(gate, up, beta, linear_beta);
  return at::mul(at::gelu(gate, "tanh"), up);
}

int Activation::kept() const {
  return type == "gelu_tanh" ? 4 : 3;  // gate, up, and what comes of them; gelu(gate) too
}

}  // namespace attnres
