#include <ATen/ops/add.h>
#include <ATen/ops/rms_norm.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {

using at::Tensor;

Tensor rms_norm_composed(const Tensor& x, const Tensor& gain, double eps) {
  note_composed("RMSNorm", x);
  return at::rms_norm(x, gain.sizes(), gain, eps);
}

AddedAndNormalized add_rms_norm_composed(const Tensor& state, const Tensor& pending,
                                         const Tensor& gain, double eps) {
  const Tensor sum = at::add(state, pending);
  return {sum, rms_norm_composed(sum, gain, eps)};
}

}  // namespace attnres
