// Kimi Delta Attention (KDA; Kimi Linear, arXiv 2510.26692): linear attention whose state of fixed
// size is corrected by the delta rule and decays channel by channel. No positions, no softmax.
//
//   q, k, v = silu(conv(W x))      causal depthwise convolution over `conv_width` tokens
//   q = q / |q| / sqrt(K), k = k / |k|               per head, |z| = sqrt(sum z^2 + 1e-6)
//   g = -exp(A_log) softplus(F_b F_a x + dt_bias)    log decay per channel, A_log per head; with a
//       b sigmoid(exp(A_log) (F_b F_a x + dt_bias))  lower bound b < 0, as in Kimi K3
//   beta = sigmoid(B x)                              per head
//   o = gated_delta_rule(q, k, v, g, beta)           ops/gated_delta_rule
//   y = W_o [RMSNorm(o) * o_norm * sigmoid(z)]       z = G_b G_a x, or G x of full rank (Kimi K3)
//
// Start: A_log the logarithm of U(1, 16); dt_bias such that softplus(dt_bias) is log-uniform in
// [1e-3, 0.1]; convolutions U(-1, 1) / sqrt(conv_width).
#pragma once

#include <cstdint>
#include <string>

#include "attnres/layers/layer_place.h"
#include "attnres/layers/linear.h"
#include "attnres/layers/sublayer.h"
#include "attnres/parameters/parameters.h"
#include "attnres/support/config_key.h"

namespace attnres {

inline constexpr const char* kDelta = "delta";

struct DeltaAttentionInputs;

struct DeltaAttentionSettings {
  int64_t heads = 0;       // H
  int64_t head_width = 0;  // K
  int64_t conv_width = 4;
  double gate_lower_bound = 0;
  std::string output_gate = "low_rank";

  template <class V>
  void visit(V& v) {
    v("heads", heads, "heads; 0 stands for the model's", dimension(0));
    v("head_width", head_width, "numbers of a head's keys and values; 0 stands for width / heads",
      dimension(0));
    v("conv_width", conv_width, "tokens that the convolutions see", dimension(1));
    v("gate_lower_bound", gate_lower_bound, "lower bound of the log decay (Kimi K3); 0 for none",
      from_to(-kLargestFactor, 0));
    v("output_gate", output_gate, "map of the gate of the output",
      one_of({{"low_rank", "by way of head_width"}, {"full_rank", "Kimi K3"}}));
  }

  bool has_full_rank_gate() const { return output_gate == "full_rank"; }

  // Fills in the defaults. Throws UsageError naming the key, `path` before it.
  void resolve(int64_t width, int64_t model_heads, const std::string& path);
};

class DeltaAttention : public Sublayer {
 public:
  // Adds, at this site (P = H K): q_proj, k_proj, v_proj [P, D], q_conv1d, k_conv1d, v_conv1d
  // [P, conv_width], A_log [H], dt_bias [P], f_a_proj [K, D], f_b_proj [P, K], b_proj [H, D],
  // g_a_proj [K, D] and g_b_proj [P, K] or g_proj [P, D], o_norm [K], o_proj [D, P].
  // Throws UsageError when a mechanism wants to adapt heads, which KDA has no keys and values for.
  DeltaAttention(const DeltaAttentionSettings& settings, const LayerPlace& place,
                 ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext& context) const override;
  SublayerCost cost(int64_t context) const override;
  std::vector<KeptTensor> kept() const override;

 private:
  at::Tensor in_one_call(const DeltaAttentionInputs& all, const Spans& spans, int layer) const;
  at::Tensor composed(const DeltaAttentionInputs& all, const Spans& spans, int layer) const;

  DeltaAttentionSettings settings_;  // with this process's part of the heads
  double norm_eps_;
  at::ScalarType activations_;           // their dtype
  LinearGroup input_proj_;               // q, k, v, f_a, b, and g or g_a
  Linear f_b_proj_, g_b_proj_, o_proj_;  // g_b_proj where the gate is of low rank
  at::Tensor q_conv_, k_conv_, v_conv_, A_log_, dt_bias_, o_norm_;
};

}  // namespace attnres
