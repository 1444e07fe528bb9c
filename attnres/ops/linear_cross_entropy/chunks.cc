#include "attnres/ops/linear_cross_entropy/chunks.h"

#include <ATen/TensorOperators.h>

#include "attnres/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "attnres/ops/matmul/products.h"

namespace attnres {

using at::Tensor;

constinit DeviceTable<decltype(chunk_logits_composed)> chunk_logits_table(&chunk_logits_composed);
constinit DeviceTable<decltype(chunk_loss_composed)> chunk_loss_table(&chunk_loss_composed);

Tensor chunk_logits_composed(const Tensor& hidden_CD, const Tensor& weight_VD,
                             const Tensor& /*copy_VD*/) {
  return product(Product::output, hidden_CD.to(weight_VD.scalar_type()), weight_VD);
}

Tensor chunk_loss_composed(const Tensor& logits_CV, const Tensor& targets_C,
                           std::optional<double> scale, at::ScalarType dtype, const Tensor& nll_C) {
  const Tensor targets_C1 = targets_C.unsqueeze(1), target_C1 = targets_C1.clamp_min(0),
               counted_C1 = targets_C1.ne(kIgnoredTarget).to(logits_CV.scalar_type()),
               log_normaliser_C1 = logits_CV.logsumexp(1, /*keepdim=*/true);
  nll_C.copy_(((log_normaliser_C1 - logits_CV.gather(1, target_C1)) * counted_C1).squeeze(1));
  if (!scale) return {};
  Tensor gradient = logits_CV;
  gradient.sub_(log_normaliser_C1).exp_();
  const Tensor factor = counted_C1 * *scale;
  return gradient.mul_(factor).scatter_add_(1, target_C1, -factor).to(dtype);
}

}  // namespace attnres
