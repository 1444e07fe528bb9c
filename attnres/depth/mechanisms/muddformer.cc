// MUDDFormer, multiway dynamic dense connections (Xiao et al., arXiv 2502.12170): the query, key,
// value and residual inputs of a Transformer layer are four sums over the outputs of all layers
// before it, with weights that the newest of these outputs gives through a small MLP:
//   A_i = GELU(RMS(Z_i) W1_i) W2_i + a_i
//   X_i^c = sum_{k=0..i} A_{i,k}^c Z_k                                       c = q, k, v, r
//   r = X_i^r + attention(norm(X_i^q), norm(X_i^k), norm(X_i^v))
//   Z_{i+1} = r + ffn(norm(r))
// Z_0 = v_0 is the embedding, Z_i the output of layer i-1. Layer 0 reads v_0 four times, with one
// norm; the output reads X_J^r. RMS has no gain; GELU is the exact one.
//
// For layer i: W1_i ("weight_up") has 4(i+1) hidden units, W2_i ("weight_down") as many outputs,
// a_i ("depth_weights") is [4, i+1]. The output has as many hidden units, and the i+1 weights of
// its one stream, as in the authors' code. W1 ~ N(0, 1/d), W2 = 0, a = 1 at k = i, else 0:
// residual. Left out of the paper: feed-forwards that grow with depth, which would change the model
// around the mechanism.
//
// `pre_post_norm` is the paper's PrePostDANorm (section 2.5, Eq. 10), for deep and narrow models:
//   X_i^c = Z_i + sum_{k=0..i} A_{i,k}^c norm_k(Z_k)  for c = q, k, v
//   X_i^r = Z_i + norm'_i( sum_{k=0..i} A_{i,k}^r norm_k(Z_k) )
// The gains of norm_k ("source_norm") start at one, those of norm'_i ("sum_norm") at 1e-3, and all
// of a at zero: residual. Eq. 10 has norm' around every sum; the authors' code, which this follows
// (github.com/Caiyun-AI/MUDDFormer, jax/MaxText/layers/models.py), around r's only: the others are
// normed as an attention's inputs. The output's one sum is r's. Left out of the code: a gain in the
// RMS before W1, which W1 can hold.
#include <ATen/ops/add.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

constexpr int64_t kStreams = 4;  // query, key, value, residual

struct MuddFormerSettings {
  bool pre_post_norm = false;

  template <class V>
  void visit(V& v) {
    v("pre_post_norm", pre_post_norm,
      "whether the sums' terms are normed, and the residual's sum, and all sums are added to the "
      "newest output (PrePostDANorm, for deep and narrow models)");
  }
  std::string formula(const MixerShape& shape) const;
};

class MuddFormer : public SourceMixer {
 public:
  MuddFormer(const MuddFormerSettings& settings, const MixerShape& shape,
             ParameterRegistry& parameters)
      : SourceMixer(shape, parameters),
        with_norms_(settings.pre_post_norm),
        layers_(shape.layers() + 1),
        unit_gain_(at::ones(
            {shape.width},
            at::TensorOptions(parameters.device()).dtype(parameters.precision().parameters))) {
    for (int i = 1; i <= shape.layers(); ++i) {
      const int site = 2 * i;
      const bool at_output = site == shape.sublayers;
      const int64_t sources = i + 1, hidden = kStreams * sources;
      const int64_t streams = at_output ? 1 : kStreams;
      const auto add = [&](const char* role, ParameterKind kind, at::IntArrayRef sizes,
                           const Init& init) {
        return parameters.add(site, role, kind, sizes, init);
      };
      Layer& layer = layers_[i];
      layer.up = add("weight_up", ParameterKind::matrix, {hidden, shape.width},
                     Init::normal(1 / std::sqrt(shape.width)));
      layer.down =
          add("weight_down", ParameterKind::matrix, {streams * sources, hidden}, Init::zeros());
      const double newest = with_norms_ ? 0 : 1;
      layer.fixed = add("depth_weights", ParameterKind::mixing, {streams, sources},
                        Init::by_index([=](int64_t k) { return k % sources == i ? newest : 0; }));
      if (with_norms_) {
        layer.sum_norm =
            add("sum_norm", ParameterKind::norm_gain, {shape.width}, Init::constant(1e-3));
      }
      if (at_output) continue;
      layer.key_norm = add_norm(parameters, site, "key_input_norm", shape);
      layer.value_norm = add_norm(parameters, site, "value_input_norm", shape);
    }
    for (int k = 0; with_norms_ && k <= shape.layers(); ++k) {
      layers_[k].source_norm = add_norm(parameters, made_at(k), "source_norm", shape);
    }
  }

  SublayerNeeds needs(int site) const override {
    return {.separate_qkv = site % 2 == 0 && site > 0};
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return with_norms_ ? NormedMixer::start(embedding_TD) : SourceMixer::start(embedding_TD);
  }

  // `sealed` are Z_0, Z_1, .., or their norms; `open` is r, a layer's residual stream after its
  // attention, through which X^r is carried, and with norms the newest Z before a layer.
  StatePlan plan(int site) const override {
    if (with_norms_ && site == 0) return NormedMixer::plan(site);
    StatePlan plan = plan_of_layers(site, shape());
    if (with_norms_) plan.open = NormedMixer::plan(site).open;
    return plan;
  }

  SublayerInput read(DepthState& state) const override {
    const int site = state.site;
    const bool in_layer = site % 2 == 1, at_output = site == shape().sublayers;
    if (with_norms_ && site == 0) seal(state, state.open[0]);
    with_slots(state.sealed);
    if (in_layer) return normed(state, state.open[0]);
    if (site == 0) {
      const at::Tensor& Z_TD = with_norms_ ? state.open[0] : state.sealed[0];
      carry(state, Z_TD);
      return normed(state, Z_TD);
    }
    const Layer& layer = layers_[site / 2];
    const std::vector<at::Tensor> weights = stream_weights(state, layer).unbind(0);
    const auto stream = [&](size_t c) {
      at::Tensor sum_TD = weighted_sum(state.sealed, weights[c]);
      if (!with_norms_) return sum_TD;
      const bool is_residual = c + 1 == weights.size();
      if (is_residual) sum_TD = normalize(state, sum_TD, layer.sum_norm, shape().norm_eps);
      return at::add(state.open[0], sum_TD);
    };
    if (at_output) return normed(state, stream(0));

    const at::Tensor query = stream(0), key = stream(1), value = stream(2), residual = stream(3);
    SublayerInput input = normed(state, query);
    show_stream(state, "key", key);
    show_stream(state, "value", value);
    show_stream(state, "residual", residual);
    carry(state, residual);
    input.key = normalize(state, key, layer.key_norm, shape().norm_eps);
    input.value = normalize(state, value, layer.value_norm, shape().norm_eps);
    return input;
  }

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const bool ends_layer = state.site % 2 == 1;
    const at::Tensor sum_TD = at::add(ends_layer ? state.open[0] : carried(state), y_TD);
    if (ends_layer) seal(state, sum_TD);
    state.open.clear();
    if (with_norms_ || !ends_layer) state.open.push_back(sum_TD);
  }

 private:
  struct Layer {
    at::Tensor up, down, fixed;        // W1, W2, a
    at::Tensor key_norm, value_norm;   // the query's is the input norm
    at::Tensor source_norm, sum_norm;  // of the terms Z_i, whatever layer reads it, and of r's sum
  };

  // The site whose read (0) or write makes the source Z_k.
  static int made_at(int k) { return std::max(0, 2 * k - 1); }

  // Z_k, at the site that makes it.
  void seal(DepthState& state, const at::Tensor& Z_TD) const {
    const at::Tensor& gain = layers_[(state.site + 1) / 2].source_norm;
    state.sealed.push_back(with_norms_ ? normalize(state, Z_TD, gain, shape().norm_eps) : Z_TD);
  }

  // A: [streams, sources, T, 1].
  at::Tensor stream_weights(const DepthState& state, const Layer& layer) const {
    const at::Tensor& newest_TD = with_norms_ ? state.open[0] : state.sealed.back();
    const at::Tensor normed = rms_norm(newest_TD, unit_gain_, shape().norm_eps);
    const at::Tensor hidden = at::gelu(wide_linear(normed, layer.up));
    const at::Tensor weights = wide_linear(hidden, layer.down, layer.fixed.flatten());
    return held(state, weights).unflatten(-1, layer.fixed.sizes()).permute({1, 2, 0}).unsqueeze(-1);
  }

  bool with_norms_;
  std::vector<Layer> layers_;  // by layer; the output is the last
  at::Tensor unit_gain_;
};

std::string MuddFormerSettings::formula(const MixerShape& /*shape*/) const {
  const std::string weights = "A_i = GELU(RMS(Z_i) W1) W2 + a_i";
  if (!pre_post_norm) {
    return "query, key, value and residual inputs are sums sum_k A_{ik} Z_k of layers' outputs, " +
           weights;
  }
  return "query, key and value inputs are Z_i + sum_k A_{ik} norm_k(Z_k), residual inputs Z_i + "
         "norm'_i(sum_k A_{ik} norm_k(Z_k)), of layers' outputs Z, " +
         weights;
}

// With norms the newest output is read once more, by each of the four.
double muddformer_traffic(const MuddFormerSettings& settings, const MixerShape& shape) {
  return (shape.layers() + 13) / 4.0 + (settings.pre_post_norm ? 1 : 0);
}

}  // namespace

Mechanism muddformer_mechanism() {
  return define_mechanism<MuddFormerSettings, MuddFormer>(
      {.name = "muddformer",
       .formula = MuddFormerSettings().formula({}),
       .start = "residual: W2 = 0, a = 1 for the newest output",
       .source = "MUDDFormer, arXiv 2502.12170; pre_post_norm: section 2.5 and the authors' code",
       .traffic = "(J + 13)/4 d; pre_post_norm: d more",
       .details = "Z_0 = v_0. Layer j sums over k = 0 .. j, with A_j of Z_j: X^c = sum_k A^c_k Z_k "
                  "for c = query, key, value, residual. mixed.2j = X^query, mixed.key.2j, "
                  "mixed.value.2j and mixed.residual.2j the others; input.2j, input.key.2j and "
                  "input.value.2j are their norms. r = X^residual + y_{2j} = h_{2j+1}, x_{2j+1} = "
                  "norm(r), Z_{j+1} = r + y_{2j+1}. Layer 0 has v_0 for all four, with one norm. "
                  "The output has one stream: h_L. GELU is x Phi(x), with erf. With pre_post_norm "
                  "S_k = norm(Z_k), with the gain of Z_k wherever it is read, X^c = Z_j + sum_k "
                  "A^c_k S_k for query, key and value, and X^residual = Z_j + norm(sum_k "
                  "A^residual_k S_k); so h_L, whose stream is residual; A_j is of Z_j as before, "
                  "and a starts at zero.",
       .roles = {input_norm_role(),
                 {"weight_up", "[4 (j + 1), d]: W1, transposed, at site 2j >= 2, also at L"},
                 {"weight_down",
                  "[C (j + 1), 4 (j + 1)]: W2, transposed; row c (j + 1) + k gives A^c_k; C = 4 "
                  "streams, query, key, value, residual, at L one"},
                 {"depth_weights", "[C, j + 1]: a, a row for each stream, Z_0 first"},
                 {"key_input_norm", "[d]: gain of input.key.l"},
                 {"value_input_norm", "[d]: gain of input.value.l"},
                 {"source_norm", "[d]: gain of S_k, of Z_0 at site 0, of Z_k at site 2k - 1"},
                 {"sum_norm", "[d]: gain of norm(sum_k A^residual_k S_k), at site 2j >= 2 and L"}}},
      muddformer_traffic);
}

}  // namespace attnres
