#include <ATen/ops/log_softmax.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/sinkhorn/sinkhorn.h"

namespace attnres {

at::Tensor sinkhorn_composed(const at::Tensor& logits_TMM, int64_t rounds) {
  note_composed("sinkhorn", logits_TMM);
  at::Tensor log_TMM = logits_TMM;
  for (int64_t round = 0; round < rounds; ++round) {
    log_TMM = at::log_softmax(log_TMM, 1);
    log_TMM = at::log_softmax(log_TMM, 2);
  }
  return log_TMM.exp();
}

}  // namespace attnres
