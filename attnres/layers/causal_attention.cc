#include "attnres/layers/causal_attention.h"

#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <algorithm>

#include "attnres/ops/causal_attention/causal_attention.h"

namespace attnres {
namespace {

// Fewer keys fill no tile. Of fewer queries, whose tile is mostly empty, all scores are small.
constexpr int64_t kTokensWorthTiling = 64;
constexpr int64_t kQueriesWorthTiling = 16;

// Keys or values, each head as often as queries read it, where that is what torch's kernel needs:
// those of GPUs for float32 know no shared heads, and all scores would be kept.
at::Tensor for_heads_of(const at::Tensor& q_BHTK, const at::Tensor& kv_BGNK) {
  const int64_t readers = q_BHTK.size(1) / kv_BGNK.size(1);
  const bool apart = readers > 1 && !q_BHTK.is_cpu() && q_BHTK.scalar_type() == at::kFloat;
  return apart ? kv_BGNK.repeat_interleave(readers, /*dim=*/1) : kv_BGNK;
}

}  // namespace

const at::Tensor& CausalMasks::mask(int64_t tokens, int64_t keys, int64_t window,
                                    at::Device device) const {
  at::Tensor& mask = made_[{tokens, keys, window}];
  if (!mask.defined()) {
    mask = at::ones({tokens, keys}, at::TensorOptions(device).dtype(at::kBool)).tril(keys - tokens);
    if (window > 0) mask = mask.triu(keys - tokens - window + 1);
  }
  return mask;
}

at::Tensor causal_attention(const at::Tensor& q_BHTK, const at::Tensor& k_BHNK,
                            const at::Tensor& v_BHNV, const CausalMasks& masks, int64_t window,
                            const at::Tensor& sinks_H) {
  const int64_t T = q_BHTK.size(2);
  // The keys that some query sees.
  const int64_t N = std::min(k_BHNK.size(2), window == 0 ? k_BHNK.size(2) : window + T - 1);
  if (N <= window) window = 0;
  // A part only where it is one: its gradient is a copy of all.
  const auto seen = [&](const at::Tensor& x) {
    return x.size(2) == N ? x : x.narrow(2, x.size(2) - N, N);
  };
  const at::Tensor k_BHN = seen(k_BHNK), v_BHN = seen(v_BHNV);
  const at::Tensor q = q_BHTK.transpose(1, 2), k = k_BHN.transpose(1, 2), v = v_BHN.transpose(1, 2);
  if (N >= kTokensWorthTiling && T >= kQueriesWorthTiling && can_tile_attention(q, k, v)) {
    return tiled_causal_attention(q, k, v, window, sinks_H).transpose(1, 2);
  }
  if (sinks_H.defined()) {
    return causal_attention_composed(q, k, v, window, sinks_H).transpose(1, 2);
  }
  c10::optional<at::Tensor> mask;
  if (T > 1 && (N > T || window > 0)) mask = masks.mask(T, N, window, q_BHTK.device());
  // One token sees every key: no mask at all.
  const bool causal = T > 1 && !mask.has_value();
  const at::Tensor keys = for_heads_of(q_BHTK, k_BHN), values = for_heads_of(q_BHTK, v_BHN);
  return at::scaled_dot_product_attention(q_BHTK, keys, values, mask, /*dropout_p=*/0.0, causal,
                                          /*scale=*/c10::nullopt,
                                          /*enable_gqa=*/q_BHTK.size(1) != keys.size(1));
}

}  // namespace attnres
