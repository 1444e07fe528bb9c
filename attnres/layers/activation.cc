#include "attnres/layers/activation.h"

#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"
#include "attnres/support/error.h"

namespace attnres {

void Activation::check(const std::string& path) const {
  require_usage(type == "silu" || type == "situ",
                "{}.type: expected \"silu\" or \"situ\", got \"{}\"", path, type);
  require_usage(beta > 0, "{}.beta: expected more than 0, got {}", path, beta);
}

at::Tensor Activation::operator()(const at::Tensor& gate, const at::Tensor& up) const {
  return type == "silu" ? swiglu(gate, up) : situ(gate, up, beta, linear_beta);
}

}  // namespace attnres
