#include "attnres/layers/activation.h"

#include <ATen/ops/gelu.h>
#include <ATen/ops/mul.h>

#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {

void Activation::check(const std::string& path) const {
  require_usage(type == "silu" || type == "gelu_tanh" || is_situ(),
                "{}.type: expected \"silu\", \"gelu_tanh\" or \"situ\", got \"{}\"", path,
                one_line(type));
  require_usage(beta > 0, "{}.beta: expected more than 0, got {}", path, beta);
}

at::Tensor Activation::operator()(const at::Tensor& gate, const at::Tensor& up) const {
  if (type == "silu") return swiglu(gate, up);
  if (is_situ()) return situ(gate, up, beta, linear_beta);
  return at::mul(at::gelu(gate, "tanh"), up);
}

int Activation::kept() const {
  return type == "gelu_tanh" ? 4 : 3;  // gate, up, and what comes of them; gelu(gate) too
}

}  // namespace attnres
