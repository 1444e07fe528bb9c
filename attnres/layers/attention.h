// Causal grouped-query self-attention (Ainslie et al., arXiv 2305.13245) with rotary positions.
// Linear maps have no bias. Query head h reads key-value head h / (heads / kv_heads).
#pragma once

#include <cstdint>

#include "attnres/layers/sublayer.h"
#include "attnres/support/parameters.h"

namespace attnres {

struct AttentionShape {
  int64_t width = 0;     // d
  int64_t heads = 0;     // divides width
  int64_t kv_heads = 0;  // divides heads
  double rope_theta = 10000;
  double init_std = 0.02;
  SublayerNeeds needs;

  int64_t head_width() const { return width / heads; }  // even
};

class Attention : public Sublayer {
 public:
  // Adds q_proj, k_proj, v_proj, o_proj, each [out, in], at this site.
  Attention(const AttentionShape& shape, int site, ParameterRegistry& parameters);

  // With a cache, the call's keys and values are appended to it. Throws Error when it is full.
  SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const override;
  std::unique_ptr<SequenceCache> make_cache(int64_t batch, int64_t capacity) const override;

 private:
  AttentionShape shape_;
  at::Tensor q_proj_, k_proj_, v_proj_, o_proj_;
};

}  // namespace attnres
