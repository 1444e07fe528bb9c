#include <ATen/TensorOperators.h>
#include <ATen/ops/logsumexp.h>

#include "attnres/ops/sinkhorn/sinkhorn.h"

namespace attnres {

at::Tensor sinkhorn_composed(const at::Tensor& logits_TMM, int64_t rounds) {
  at::Tensor log_TMM = logits_TMM;
  for (int64_t round = 0; round < rounds; ++round) {
    log_TMM = log_TMM - at::logsumexp(log_TMM, {1}, /*keepdim=*/true);
    log_TMM = log_TMM - at::logsumexp(log_TMM, {2}, /*keepdim=*/true);
  }
  return log_TMM.exp();
}

}  // namespace attnres
