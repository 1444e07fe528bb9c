// Causal grouped-query self-attention (Ainslie et al., arXiv 2305.13245) with rotary positions.
// Linear maps have no bias. Query head h reads key-value head h / (heads / kv_heads).
#pragma once

#include <cstdint>

#include "attnres/layers/linear.h"
#include "attnres/layers/sublayer.h"
#include "attnres/support/parameters.h"

namespace attnres {

struct AttentionShape {
  int64_t width = 0;  // d
  int64_t heads = 0;
  int64_t kv_heads = 0;    // divides heads
  int64_t head_width = 0;  // even
  double rope_theta = 10000;
  double init_std = 0.02;
  SublayerNeeds needs = {};
};

class Attention : public Sublayer {
 public:
  // Adds q_proj [heads head_width, d], k_proj and v_proj [kv_heads head_width, d], o_proj
  // [d, heads head_width] at this site.
  Attention(const AttentionShape& shape, int site, ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const override;
  SublayerCost cost(int64_t context) const override;
  std::vector<KeptTensor> kept() const override;

 private:
  AttentionShape shape_;
  at::ScalarType activations_;  // their dtype
  LinearGroup qkv_proj_;
  Linear o_proj_;
};

}  // namespace attnres
