#include <ATen/TensorOperators.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/matmul.h>

#include "attnres/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

Tensor linear_cross_entropy_composed(const Tensor& hidden_MD, const Tensor& weight_VD,
                                     const Tensor& targets_M, double scale) {
  const at::ScalarType wide = compute_dtype(hidden_MD);
  const Tensor logits = at::matmul(hidden_MD.to(wide), weight_VD.to(wide).t());
  const Tensor sum = at::cross_entropy_loss(logits, targets_M.to(logits.device()), /*weight=*/{},
                                            at::Reduction::Sum, kIgnoredTarget);
  return sum * scale;
}

}  // namespace attnres
