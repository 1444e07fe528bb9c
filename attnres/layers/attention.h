// Causal grouped-query self-attention (Ainslie et al., arXiv 2305.13245). With K channels a head:
//
//   q, k, v = W_q x + b_q, W_k x + b_k, W_v x + b_v      b: with qkv_bias (Qwen 2)
//   q, k = RMSNorm(q), RMSNorm(k)                        of each head: with qk_norm (Qwen 3)
//   q, k = rotary(q), rotary(k)                          where there are frequencies
//   o_t = sum_s softmax_s(score_scale q_t . k_s) v_s     s <= t; with a window s > t - window
//   y = W_o o + b_o                                      b_o: with output_bias (gpt-oss)
//
// With sinks (gpt-oss, after arXiv 2309.17453) each head has a number z that stands among the
// scores of the softmax, and no value: o_t = sum_s e^s_ts v_s / (sum_s e^s_ts + e^z).
//
// Query head h reads key-value head h / (heads / kv_heads).
#pragma once

#include <cstdint>
#include <optional>

#include "attnres/layers/layer_place.h"
#include "attnres/layers/linear.h"
#include "attnres/layers/sublayer.h"
#include "attnres/ops/rotary/rotary.h"
#include "attnres/parameters/parameters.h"
#include "attnres/support/config_key.h"

namespace attnres {

inline constexpr const char* kGroupedQuery = "grouped_query";    // with rotary positions
inline constexpr const char* kSlidingWindow = "sliding_window";  // the same in a window
inline constexpr const char* kNope = "nope";                     // the same without positions

// What all three may have.
struct GroupedQuerySettings {
  bool qkv_bias = false;
  bool qk_norm = false;
  bool output_bias = false;
  bool sinks = false;
  double score_scale = 0;

  template <class V>
  void visit(V& v) {
    v("qkv_bias", qkv_bias, "whether the maps of queries, keys and values have biases (Qwen 2)");
    v("qk_norm", qk_norm, "whether queries and keys are normed, head by head (Qwen 3)");
    v("output_bias", output_bias, "whether the map of what heads give has a bias (gpt-oss)");
    v("sinks", sinks,
      "whether each head has a number among its scores that stands for no token (gpt-oss)");
    v("score_scale", score_scale,
      "by which scores are multiplied; 0 stands for 1 / sqrt(head_width)", factor_from(0));
  }
};

struct SlidingWindowSettings {
  int64_t window = 4096;
  double rope_theta = 0;

  template <class V>
  void visit(V& v) {
    v("window", window, "tokens that a token sees, itself one of them", dimension(1));
    v("rope_theta", rope_theta,
      "base of its own rotary frequencies, unscaled (Gemma 3); 0: positions are the model's, "
      "scaled as they are",
      from_to(0, kLargestTheta));
  }
};

struct AttentionShape {
  int64_t heads = 0;
  int64_t kv_heads = 0;                          // divides heads
  int64_t head_width = 0;                        // K, even
  std::optional<RotaryFrequencies> rotary = {};  // none: no positions (NoPE, arXiv 2305.19466)
  int64_t window = 0;                            // 0: all earlier tokens
  GroupedQuerySettings settings = {};
};

class Attention : public Sublayer {
 public:
  // Adds q_proj [heads K, D], k_proj and v_proj [kv_heads K, D], o_proj [D, heads K] at this site;
  // with qkv_bias q_bias [heads K], k_bias and v_bias [kv_heads K]; with qk_norm q_layernorm and
  // k_layernorm [K]; with output_bias o_bias [D]; with sinks sinks [heads].
  Attention(const AttentionShape& shape, const LayerPlace& place, ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const override;
  SublayerCost cost(int64_t context) const override;
  std::vector<KeptTensor> kept() const override;

 private:
  AttentionHeads heads_of(const SublayerInput& input) const;
  // Keys that a token sees on average among `context`.
  double seen_keys(int64_t context) const;

  AttentionShape shape_;  // with this process's part of the heads
  double norm_eps_;
  at::ScalarType activations_;  // their dtype
  LinearGroup qkv_proj_;
  at::Tensor q_bias_, k_bias_, v_bias_;  // undefined without qkv_bias
  at::Tensor q_norm_, k_norm_;           // undefined without qk_norm
  Linear o_proj_;
  at::Tensor o_bias_;  // undefined without output_bias, and where another process adds it
  at::Tensor sinks_;   // undefined without
};

}  // namespace attnres
