#include "attnres/layers/rms_norm.h"

#include <ATen/ops/rms_norm.h>

namespace attnres {

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps) {
  return at::rms_norm(x, gain.sizes(), gain, eps);
}

}  // namespace attnres
