#include "attnres/ops/paged_attention/paged_attention.h"

#include <cmath>

#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

bool is_paged(const Tensor& rows, const Tensor& queries) {
  return rows.scalar_type() == queries.scalar_type() && rows.is_contiguous();
}

}  // namespace

constinit DeviceTable<PagedAttentionFunction> paged_attention_table(&paged_attention_composed);

bool can_page_attention(const Tensor& q_THK) {
  return q_THK.scalar_type() == at::kFloat || q_THK.scalar_type() == at::kBFloat16;
}

Tensor paged_attention(const Tensor& q_THK, const Tensor& keys, const Tensor& values,
                       const std::vector<SeenTokens>& seen, int64_t page_tokens,
                       const Tensor& sinks_H) {
  require(q_THK.dim() == 3 && keys.dim() == 3 && values.dim() == 3 &&
              q_THK.size(0) == std::ssize(seen) && q_THK.size(2) == keys.size(2) &&
              keys.size(1) == values.size(1) && keys.size(1) > 0 &&
              q_THK.size(1) % keys.size(1) == 0 && is_paged(keys, q_THK) && is_paged(values, q_THK),
          "paged attention: expected q [T, H, K], keys [rows, G, K], values [rows, G, V] and what "
          "each of T queries sees; they are {}, {}, {} and {}",
          shape_of(q_THK), shape_of(keys), shape_of(values), seen.size());
  require_one_device("paged attention", q_THK, keys, values);
  require(!sinks_H.defined() || (sinks_H.dim() == 1 && sinks_H.size(0) == q_THK.size(1) &&
                                 sinks_H.device() == q_THK.device()),
          "paged attention: of queries {} expected a sink for each head there; they are {}",
          described(q_THK), shape_of(sinks_H));
  const double scale = 1 / std::sqrt(static_cast<double>(q_THK.size(2)));
  return paged_attention_table.of(q_THK)(q_THK.detach(), keys, values, scale, seen, page_tokens,
                                         sinks_H);
}

Tensor paged_latent_attention(const Tensor& q_THC, const Tensor& latents, int64_t rank,
                              double scale, const std::vector<SeenTokens>& seen,
                              int64_t page_tokens) {
  require(q_THC.dim() == 3 && latents.dim() == 2 && q_THC.size(0) == std::ssize(seen) &&
              q_THC.size(2) == latents.size(1) && rank > 0 && rank <= latents.size(1) &&
              is_paged(latents, q_THC),
          "paged latent attention: expected q [T, H, C], latents [rows, C] whose first {} numbers "
          "are values, and what each of T queries sees; they are {}, {} and {}",
          rank, shape_of(q_THC), shape_of(latents), seen.size());
  require_one_device("paged latent attention", q_THC, latents);
  const Tensor rows = latents.unsqueeze(1);
  return paged_attention_table.of(q_THC)(q_THC.detach(), rows, rows.narrow(2, 0, rank), scale, seen,
                                         page_tokens, {});
}

}  // namespace attnres
