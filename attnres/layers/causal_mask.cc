#include "attnres/layers/causal_mask.h"

#include <ATen/ops/ones.h>

namespace attnres {

at::Tensor causal_mask(int64_t tokens, int64_t keys) {
  return at::ones({tokens, keys}, at::kBool).tril(keys - tokens);
}

}  // namespace attnres
