// Multi-head latent attention (MLA; DeepSeek-V2, arXiv 2405.04434): keys and values are expanded
// from a narrow latent, and only the latent is kept of earlier tokens.
//
//   c = RMSNorm((W_kva x)[: R])   latent (eps 1e-6, whatever the model's), and beside it s,
//   s = (W_kva x)[R :]            shared_key_width numbers of every head's key, not normed
//   [k_h, v_h] = W_kvb,h c        key_h = [k_h, s],  query_h = W_q,h x
//   o_h = causal softmax(score_scale query_h . key_h) v_h
//   y = W_o [o * sigmoid(G x)]    the gate only with `output_gate` (Kimi K3)
//
// With `rotary` (DeepSeek-V3, arXiv 2412.19437) s, and the part of a query that meets it, are
// turned by their positions, in the half-split layout; Kimi Linear (arXiv 2510.26692) has no
// positions here. With q_rank, W_q x = W_qb RMSNorm(W_qa x) (Kimi K3; eps 1e-6 too). Where few
// tokens meet many keys, as in decoding, W_kvb is absorbed: queries and sums are taken into and out
// of the latent, and earlier tokens, of which R + shared_key_width numbers are kept, are never
// expanded.
#pragma once

#include <cstdint>
#include <string>

#include "attnres/layers/causal_attention.h"
#include "attnres/layers/earlier_tokens.h"
#include "attnres/layers/layer_place.h"
#include "attnres/layers/linear.h"
#include "attnres/layers/sublayer.h"
#include "attnres/ops/rotary/rotary.h"
#include "attnres/parameters/parameters.h"
#include "attnres/support/config_key.h"

namespace attnres {

inline constexpr const char* kLatent = "latent";

struct LatentAttentionSettings {
  int64_t kv_rank = 0;  // R
  int64_t q_rank = 0;
  int64_t key_width = 0;
  int64_t shared_key_width = 0;
  int64_t value_width = 0;
  bool output_gate = false;
  bool rotary = false;
  double score_scale = 0;

  template <class V>
  void visit(V& v) {
    v("kv_rank", kv_rank, "numbers of the latent of keys and values; 0 stands for half the width",
      dimension(0));
    v("q_rank", q_rank, "numbers of the latent of queries; 0: their map has full rank",
      dimension(0));
    v("key_width", key_width, "numbers of a head's own part of the key; 0 stands for width / heads",
      dimension(0));
    v("shared_key_width", shared_key_width,
      "numbers of the part of the key that heads share; 0 stands for half of key_width",
      dimension(0));
    v("value_width", value_width, "numbers of a head's value; 0 stands for key_width",
      dimension(0));
    v("output_gate", output_gate, "whether the output has a gate (Kimi K3)");
    v("rotary", rotary, "whether the shared part of keys has rotary positions (DeepSeek-V3)");
    v("score_scale", score_scale,
      "by which scores are multiplied; 0 stands for 1 / sqrt(key_width + shared_key_width)",
      factor_from(0));
  }

  // Fills in the defaults. Throws UsageError naming the key, `path` before it.
  void resolve(int64_t width, int64_t heads, const std::string& path);
};

class LatentAttention : public Sublayer {
 public:
  // Adds, at this site (H heads, q of H (key_width + shared_key_width)): q_proj [q, D], or q_a_proj
  // [q_rank, D], q_a_layernorm [q_rank] and q_b_proj [q, q_rank]; kv_a_proj_with_mqa
  // [R + shared_key_width, D], kv_a_layernorm [R], kv_b_proj [H (key_width + value_width), R];
  // g_proj [H value_width, D] with an output gate; o_proj [D, H value_width].
  // Throws UsageError when a mechanism wants inputs of their own for keys and values, which come
  // from one latent here, or to adapt heads. The frequencies are used with `rotary` only.
  LatentAttention(const LatentAttentionSettings& settings, int64_t heads, const LayerPlace& place,
                  ParameterRegistry& parameters, RotaryFrequencies frequencies = {});

  SublayerOutput forward(const SublayerInput& input, const SequenceContext& context) const override;
  SublayerCost cost(int64_t context) const override;
  std::vector<KeptTensor> kept() const override;

 private:
  // Queries [T, H, key_width + shared_key_width], and what all heads share of the keys [T, S].
  struct Shared {
    at::Tensor q_THK, key_TS;
  };
  Shared with_positions(const Spans& spans, const Shared& plain) const;
  at::Tensor attend(const Spans& spans, int layer, const at::Tensor& q_THK,
                    const KeptParts& latents_TC) const;
  at::Tensor attend_pages(const Spans& spans, int layer, const at::Tensor& q_THK,
                          const KeptParts& latents_TC) const;

  LatentAttentionSettings settings_;
  int64_t heads_;  // of this process
  RotaryFrequencies frequencies_;
  at::ScalarType activations_;  // their dtype
  LinearGroup input_proj_;      // of the queries or of their latent, of the latent, and of the gate
  Linear q_b_proj_, kv_b_proj_, o_proj_;
  at::Tensor q_a_norm_, kv_a_norm_;
};

// What `forward` chooses from: two forms of o above, equal but for rounding. Queries [B, T, H,
// key_width + shared_key_width] of a call's tokens, and [c, s] [B, N, R + shared_key_width] of all
// N >= T tokens up to its last, give [B, T, H, value_width].
struct LatentHeads {
  at::Tensor q_BTHK, latents_BNC;
  MapWeight kv_b_proj;
};
// Keys and values of all tokens, then ordinary attention.
at::Tensor attend_expanded(const LatentHeads& heads, const LatentAttentionSettings& settings,
                           const CausalMasks& masks = {});
// W_kvb absorbed, by blocks of queries: of all heads, so many scores there are at once, or those of
// one query of the sequences.
at::Tensor attend_absorbed(const LatentHeads& heads, const LatentAttentionSettings& settings,
                           const CausalMasks& masks = {}, int64_t most_scores = int64_t{8} << 20);
// Whether few tokens meet so many keys that the second form multiplies less.
bool absorbing_is_cheaper(int64_t tokens, int64_t keys, const LatentAttentionSettings& settings);

}  // namespace attnres
