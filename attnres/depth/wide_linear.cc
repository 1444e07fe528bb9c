#include "attnres/depth/wide_linear.h"

#include <ATen/ops/linear.h>

namespace attnres {

at::Tensor wide_linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
  return at::linear(x.to(weight.scalar_type()), weight, bias);
}

}  // namespace attnres
