// Sparsely activated feed-forward (mixture of experts) with sigmoid routing and balance by a bias,
// as in DeepSeek-V3 (arXiv 2412.19437) and Kimi Linear (arXiv 2510.26692), or softmax routing, as
// in gpt-oss and Qwen 3.
//
//   s = sigmoid(W_gate x + b_gate)              [E], float32 at least; or softmax, over the experts
//   chosen = the `chosen` largest of s + bias   bias: e_score_correction_bias
//            with `groups` of neighbours, of those in the `chosen_groups` groups whose two largest
//            s + bias have the largest sums
//   w_e = scaling s_e / (sum over chosen s + 1e-20), or scaling s_e without `renormalize`
//   y = sum over chosen w_e f_e(x) + f_shared(x),    f(x) = W2 act(W1 x + b1, W3 x + b3) + b2
//
// with b_gate where there is `router_bias`, b1, b2 and b3, of the routed experts, with `bias`.
//
// with act as in layers/activation.h. With latent_width (Kimi K3) the routed experts work on that
// many numbers: y = W_up RMSNorm(sum over chosen w_e f_e(W_down x)) + f_shared(x), the norm only
// with latent_norm; the router and the shared expert still see x.
//
// Rows that only fill up a call (Spans::fillers) choose no expert: their sum is zero, and they are
// part of no load.
//
// Tokens are grouped by expert; an expert that no token chose is not computed and its gradient is
// zero. Results do not depend on the number of threads. The bias gets no gradient: training moves
// it by the load (`balance`). The router starts without `init_gain`, as query and key maps do.
#pragma once

#include <cstdint>
#include <string>

#include "attnres/layers/activation.h"
#include "attnres/layers/layer_place.h"
#include "attnres/layers/linear.h"
#include "attnres/layers/sublayer.h"
#include "attnres/parameters/parameters.h"
#include "attnres/support/config_key.h"

namespace attnres {

inline constexpr const char* kExperts = "experts";

struct ExpertsSettings {
  int64_t count = 0;  // E
  int64_t chosen = 2;
  int64_t width = 0;
  int64_t shared = 1;
  int64_t dense_layers = 1;
  double scaling = 1;
  bool renormalize = true;
  std::string scores = "sigmoid";
  bool router_bias = false;
  bool bias = false;
  int64_t latent_width = 0;
  bool latent_norm = true;
  int64_t groups = 1;
  int64_t chosen_groups = 1;

  template <class V>
  void visit(V& v) {
    v("count", count, "experts of a layer; 0: every feed-forward is dense", dimension(0));
    v("chosen", chosen, "experts that a token is sent to", dimension(1));
    v("width", width, "hidden width of an expert; 0 stands for ffn_width / chosen", dimension(0));
    v("shared", shared,
      "experts that every token passes through: one, of hidden width shared * width", dimension(0));
    v("dense_layers", dense_layers, "Transformer layers at the start whose feed-forward is dense",
      dimension(0));
    v("scaling", scaling, "by which the weights of a token's experts are multiplied",
      positive_factor());
    v("renormalize", renormalize,
      "whether the weights of a token's experts are divided by their sum");
    v("scores", scores, "of the experts, by which a token's are chosen and weighed",
      one_of({{"sigmoid", "each by itself (DeepSeek-V3, Kimi)"},
              {"softmax", "shares of one (gpt-oss, Qwen 3)"}}));
    v("router_bias", router_bias, "whether the map that scores come of has a bias (gpt-oss)");
    v("bias", bias, "whether the routed experts' maps have biases (gpt-oss)");
    v("latent_width", latent_width,
      "width that the routed experts work on (Kimi K3); 0: the model's", dimension(0));
    v("latent_norm", latent_norm,
      "with a latent width: whether the sum of the routed experts is normed");
    v("groups", groups, "groups of neighbouring experts, of which a token chooses some first",
      dimension(1));
    v("chosen_groups", chosen_groups, "groups that a token chooses", dimension(1));
  }

  bool has_softmax_scores() const { return scores == "softmax"; }
  // Whether it chooses as DeepSeek-V3 and Kimi do, by maps without biases.
  bool has_plain_routing() const { return !has_softmax_scores() && !router_bias && !bias; }
  // Fills in the defaults. Throws UsageError naming the key, `path` before it.
  void resolve(int64_t ffn_width, const std::string& path);
};

class Experts : public Sublayer {
 public:
  // Adds, at this site (F = width, I = latent_width or D): gate [E, D], e_score_correction_bias
  // [E]; w1, w3 [E, F, I], w2 [E, I, F]; with router_bias gate_bias [E]; with bias w1_bias, w3_bias
  // [E, F], w2_bias [E, I]; with shared experts shared_w1, shared_w3 [shared F, D],
  // shared_w2 [D, shared F]; with a latent width routed_expert_down_proj [I, D], routed_expert_norm
  // [I] (with latent_norm), routed_expert_up_proj [D, I].
  Experts(const ExpertsSettings& settings, const Activation& activation, const LayerPlace& place,
          ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext& context) const override;
  SublayerCost cost(int64_t context) const override;

 private:
  struct Routing {
    at::Tensor chosen_TC;   // int64; `count`, which is no expert, where a row is a filler
    at::Tensor weights_TC;  // w
    at::Tensor load_E;      // int64
  };
  Routing route(const at::Tensor& x_TD, const SequenceContext& context) const;
  // Scores in the order of which experts are chosen; those of other groups are -infinity.
  at::Tensor in_chosen_groups(const at::Tensor& biased_TE) const;
  // sum over chosen w_e f_e(x)
  at::Tensor sum_of_chosen(const at::Tensor& x_TI, const Routing& routing) const;
  // The same without waiting for a device's loads: every expert computes every token. Those that
  // did not choose it are zeros to it, and it is zero to them: what it would make of them may be
  // infinite, and 0 times that is no number, forward and backward.
  at::Tensor sum_of_all(const at::Tensor& x_TI, const Routing& routing) const;
  // W_up RMSNorm(sum), or this process's part of it
  at::Tensor from_latent(const at::Tensor& part_TI) const;
  // f_e of the tokens that chose it; the weights are those of `e` among w1_, w3_ and w2_.
  at::Tensor expert(int64_t e, const at::Tensor& x, const MapWeight& w1, const MapWeight& w3,
                    const MapWeight& w2) const;

  ExpertsSettings settings_;  // with this process's part of the width
  int64_t width_;
  Activation activation_;
  double norm_eps_;
  const TensorGroup* group_;
  at::Tensor gate_, bias_;      // of the router
  at::Tensor gate_bias_;        // undefined without router_bias
  at::Tensor b1_, b2_, b3_;     // undefined without bias; b2_ too where another process adds it
  ProductWeight w1_, w2_, w3_;  // of all experts
  LinearGroup shared_w1_and_w3_;
  Linear shared_w2_;                // no map where there are no shared experts
  Linear latent_down_, latent_up_;  // no maps without a latent width
  at::Tensor latent_norm_;
};

// bias += rate * sign(mean load - load), the balance without an auxiliary loss of
// arXiv 2408.15664. load: [E], tokens that chose each expert, on the bias's device or the CPU.
void balance(at::Tensor& bias, const at::Tensor& load, double rate);

}  // namespace attnres
