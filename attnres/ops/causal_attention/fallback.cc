#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>

#include <optional>

#include "attnres/ops/causal_attention/causal_attention.h"

namespace attnres {

using at::Tensor;

Tensor causal_attention_composed(const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGV,
                                 int64_t window) {
  const int64_t T = q_BTHK.size(1), N = k_BNGK.size(1);
  Tensor seen = at::ones({T, N}, q_BTHK.options().dtype(at::kBool)).tril(N - T);
  if (window > 0) seen = seen.triu(N - T - window + 1);
  return at::scaled_dot_product_attention(q_BTHK.transpose(1, 2), k_BNGK.transpose(1, 2),
                                          v_BNGV.transpose(1, 2), seen, /*dropout_p=*/0.0,
                                          /*is_causal=*/false, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/q_BTHK.size(2) != k_BNGK.size(2))
      .transpose(1, 2);
}

}  // namespace attnres
