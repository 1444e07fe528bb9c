#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>

#include <cmath>
#include <limits>
#include <optional>

#include "attnres/ops/causal_attention/causal_attention.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

namespace {

// The sinks are a key more, of which nothing is taken.
Tensor attention_with_sinks(const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGV,
                            const Tensor& seen_TN, const Tensor& sinks_H) {
  const int64_t readers = q_BTHK.size(2) / k_BNGK.size(2), N = k_BNGK.size(1);
  const at::ScalarType wide = compute_dtype(q_BTHK);
  const auto by_head = [&](const Tensor& x) {
    return x.to(wide).repeat_interleave(readers, /*dim=*/2).transpose(1, 2);
  };
  const double scale = 1 / std::sqrt(static_cast<double>(q_BTHK.size(3)));
  const Tensor scores_BHTN =
      at::matmul(q_BTHK.to(wide).transpose(1, 2), by_head(k_BNGK).transpose(2, 3))
          .mul(scale)
          .masked_fill(seen_TN.logical_not(), -std::numeric_limits<double>::infinity());
  const Tensor sinks_BHT1 = sinks_H.to(wide)
                                .view({1, -1, 1, 1})
                                .expand({scores_BHTN.size(0), -1, scores_BHTN.size(2), 1});
  const Tensor weights = at::softmax(at::cat({scores_BHTN, sinks_BHT1}, -1), -1).narrow(-1, 0, N);
  return at::matmul(weights, by_head(v_BNGV)).transpose(1, 2).to(q_BTHK.scalar_type());
}

}  // namespace

Tensor causal_attention_composed(const Tensor& q_BTHK, const Tensor& k_BNGK, const Tensor& v_BNGV,
                                 int64_t window, const Tensor& sinks_H) {
  const int64_t T = q_BTHK.size(1), N = k_BNGK.size(1);
  Tensor seen = at::ones({T, N}, q_BTHK.options().dtype(at::kBool)).tril(N - T);
  if (window > 0) seen = seen.triu(N - T - window + 1);
  if (sinks_H.defined()) return attention_with_sinks(q_BTHK, k_BNGK, v_BNGV, seen, sinks_H);
  return at::scaled_dot_product_attention(q_BTHK.transpose(1, 2), k_BNGK.transpose(1, 2),
                                          v_BNGV.transpose(1, 2), seen, /*dropout_p=*/0.0,
                                          /*is_causal=*/false, /*scale=*/std::nullopt,
                                          /*enable_gqa=*/q_BTHK.size(2) != k_BNGK.size(2))
      .transpose(1, 2);
}

}  // namespace attnres
