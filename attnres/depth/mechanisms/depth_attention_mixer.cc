// Depth attention (Dreamer; Knupp et al., arXiv 2601.21582): the residual stream, and before every
// Transformer layer j an attention of each token over its own states so far,
//   X_j <- X_j + O concat_h( sum_{i=0..j} softmax_i( q_h . k_{i,h} / sqrt(d_h) ) v_{i,h} )
//   q = W_q norm(X_j),  k_i = W_k norm(X_i),  v_i = W_v norm(X_i)
// X_i is the state that layer i begins with (X_0 the embedding), before this is added to it. The
// maps and the norm's gain are shared by all layers, as the paper shares its one layer over depth;
// the heads are the model's, d_h = d/H.
//
// The paper's equations were not to be had: it says that keys and values are those of the token's
// earlier depths and that the layer is shared. Ours are the place (before the attention), the norm,
// no positions along depth, and O = 0 at the start, which makes it residual there. It is not the
// Depth-Attention of arXiv 2606.05014, which mixes values inside attention.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

class DepthAttention final : public NormedMixer {
 public:
  DepthAttention(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters) {
    const int64_t d = shape.width;
    std::vector<int> attentions;
    for (int site = 0; site < shape.sublayers; site += 2) attentions.push_back(site);
    const auto add = [&](const char* role, const Init& init) {
      return parameters.add(kEmbeddingSite, role, ParameterKind::matrix, {d, d}, init, Shard::none,
                            attentions);
    };
    norm_ = add_norm(parameters, kEmbeddingSite, "depth_norm", shape, attentions);
    q_proj_ = add("depth_q_proj", Init::normal(shape.init_std));
    k_proj_ = add("depth_k_proj", Init::normal(shape.init_std));
    v_proj_ = add("depth_v_proj", Init::normal(shape.init_std));
    o_proj_ = add("depth_o_proj", Init::zeros());
  }

  StatePlan plan(int site) const override {
    StatePlan plan = ComposedMixer::plan(site);
    plan.sealed = plan_of_keys_and_values(site, shape(), shape().heads);
    for (PlannedTensor& tensor : plan.sealed) tensor.axis = ShardAxis::tokens;  // the mixer's own
    return plan;
  }

  SublayerInput read(DepthState& state) const override {
    if (state.site % 2 == 0 && state.site < shape().sublayers) attend(state);
    return NormedMixer::read(state);
  }

 private:
  // Adds what the token's states so far give. Sealed are k and v [T, H, K] of every layer but
  // the last, one layer after another.
  void attend(DepthState& state) const {
    const int layer = state.site / 2;
    at::Tensor& X_TD = state.open[0];
    const at::Tensor normed_TD = normalize(state, X_TD, norm_, shape().norm_eps);
    const auto heads_of = [&](const at::Tensor& projection) {
      return wide_linear(normed_TD, held(state, projection)).unflatten(-1, {shape().heads, -1});
    };
    const at::Tensor q_THK = heads_of(q_proj_), k_THK = heads_of(k_proj_),
                     v_THK = heads_of(v_proj_);
    const double scale = 1 / std::sqrt(static_cast<double>(q_THK.size(2)));
    std::vector<at::Tensor> scores;
    const auto score = [&](const at::Tensor& key_THK) {
      scores.push_back((q_THK * key_THK).sum(-1, /*keepdim=*/true, compute_dtype(X_TD)));
    };
    for (int i = 0; i < layer; ++i) score(state.sealed[2 * i]);
    score(k_THK);
    const at::Tensor weights_NBTH1 =
        held(state, at::softmax(at::stack(scores) * scale, 0)).to(X_TD.scalar_type());
    at::Tensor mixed_THK = v_THK * weights_NBTH1[layer];
    for (int i = 0; i < layer; ++i) {
      mixed_THK = at::addcmul(mixed_THK, state.sealed[2 * i + 1], weights_NBTH1[i]);
    }
    if (layer + 1 < shape().layers()) {
      state.sealed.push_back(k_THK);
      state.sealed.push_back(v_THK);
    }
    X_TD = at::add(X_TD, wide_linear(mixed_THK.flatten(1), held(state, o_proj_)));
  }

  at::Tensor norm_, q_proj_, k_proj_, v_proj_, o_proj_;
};

// The residual stream's, and once a layer: the keys and values of j earlier layers read, those of
// all layers but the last written.
double depth_attention_traffic(const NoSettings&, const MixerShape& shape) {
  const double layers = shape.layers();
  return 3 + (layers - 1) * (layers + 2) / (2 * layers);
}

}  // namespace

Mechanism depth_attention_mechanism() {
  return define_mechanism<NoSettings, DepthAttention>(
      {.name = "depth_attention",
       .formula = "X_j <- X_j + O sum_{i<=j} softmax_i(q . k_i / sqrt(d_h)) v_i, then residual",
       .start = "O = 0: equals residual",
       .source = "Dreamer, arXiv 2601.21582 (equations not read); not Depth-Attention, arXiv "
                 "2606.05014, which mixes values inside attention",
       .traffic = "3d + (J - 1)(J + 2)/(2J) d",
       .details = "X_0 = v_0. Before the attention of layer j, u = norm(X_j), q = W_q u, k_j = W_k "
                  "u, v_j = W_v u, each in H heads of d_h = d/H channels in order; the sum is by "
                  "head, over i = 0 .. j, from X_i as it was before its own addition; O maps the "
                  "heads side by side. h_{2j} = X_j after it; h_{l+1} = h_l + y_l; x_l = "
                  "norm(h_l). The output adds nothing. All layers share these parameters.",
       .roles = {input_norm_role(),
                 {"depth_norm", "[d]: gain of u"},
                 {"depth_q_proj", "[d, d]: W_q"},
                 {"depth_k_proj", "[d, d]: W_k"},
                 {"depth_v_proj", "[d, d]: W_v"},
                 {"depth_o_proj", "[d, d]: O"}}},
      depth_attention_traffic);
}

}  // namespace attnres
