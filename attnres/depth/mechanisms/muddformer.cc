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
// residual. Left out of the paper: norms of the sums' terms and of the sums ("optional
// normalization") and feed-forwards that grow with depth, which would change the model around the
// mechanism.
#include <ATen/ops/add.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/ones.h>

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

class MuddFormer : public SourceMixer {
 public:
  MuddFormer(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : SourceMixer(shape, parameters),
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
      layer.fixed = add("depth_weights", ParameterKind::mixing, {streams, sources},
                        Init::by_index([=](int64_t k) { return k % sources == i ? 1.0 : 0.0; }));
      if (at_output) continue;
      layer.key_norm = add_norm(parameters, site, "key_input_norm", shape);
      layer.value_norm = add_norm(parameters, site, "value_input_norm", shape);
    }
  }

  SublayerNeeds needs(int site) const override {
    return {.separate_qkv = site % 2 == 0 && site > 0};
  }

  // `sealed` are Z_0, Z_1, ..; `open` is r, a layer's residual stream after its attention, through
  // which X^r is carried.
  StatePlan plan(int site) const override { return plan_of_layers(site, shape()); }

  SublayerInput read(DepthState& state) const override {
    const int site = state.site;
    const bool in_layer = site % 2 == 1, at_output = site == shape().sublayers;
    with_slots(state.sealed);
    if (in_layer) return normed(state, state.open[0]);
    if (site == 0) {
      carry(state, state.sealed[0]);
      return normed(state, state.sealed[0]);
    }
    const Layer& layer = layers_[site / 2];
    const std::vector<at::Tensor> weights = stream_weights(state, layer).unbind(0);
    const auto stream = [&](size_t c) { return weighted_sum(state.sealed, weights[c]); };
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
    if (ends_layer) {
      state.sealed.push_back(at::add(state.open[0], y_TD));
      state.open.clear();
    } else {
      state.open = {at::add(carried(state), y_TD)};
    }
  }

 private:
  struct Layer {
    at::Tensor up, down, fixed;       // W1, W2, a
    at::Tensor key_norm, value_norm;  // the query's is the input norm
  };

  // A: [streams, sources, T, 1].
  at::Tensor stream_weights(const DepthState& state, const Layer& layer) const {
    const at::Tensor normed = rms_norm(state.sealed.back(), unit_gain_, shape().norm_eps);
    const at::Tensor hidden = at::gelu(wide_linear(normed, layer.up));
    const at::Tensor weights = wide_linear(hidden, layer.down, layer.fixed.flatten());
    return held(state, weights).unflatten(-1, layer.fixed.sizes()).permute({1, 2, 0}).unsqueeze(-1);
  }

  std::vector<Layer> layers_;  // by layer; the output is the last
  at::Tensor unit_gain_;
};

}  // namespace

Mechanism muddformer_mechanism() {
  return define_mechanism<NoSettings, MuddFormer>(
      {.name = "muddformer",
       .formula = "query, key, value and residual inputs are sums sum_k A_{ik} Z_k of layers' "
                  "outputs, A_i = GELU(RMS(Z_i) W1) W2 + a_i",
       .start = "residual: W2 = 0, a = 1 for the newest output",
       .source = "MUDDFormer, arXiv 2502.12170",
       .traffic = "(J + 13)/4 d",
       .details = "Z_0 = v_0. Layer j sums over k = 0 .. j, with A_j of Z_j: X^c = sum_k A^c_k Z_k "
                  "for c = query, key, value, residual. mixed.2j = X^query, mixed.key.2j, "
                  "mixed.value.2j and mixed.residual.2j the others; input.2j, input.key.2j and "
                  "input.value.2j are their norms. r = X^residual + y_{2j} = h_{2j+1}, x_{2j+1} = "
                  "norm(r), Z_{j+1} = r + y_{2j+1}. Layer 0 has v_0 for all four, with one norm. "
                  "The output has one stream: h_L. GELU is x Phi(x), with erf.",
       .roles = {input_norm_role(),
                 {"weight_up", "[4 (j + 1), d]: W1, transposed, at site 2j >= 2, also at L"},
                 {"weight_down",
                  "[C (j + 1), 4 (j + 1)]: W2, transposed; row c (j + 1) + k gives A^c_k; C = 4 "
                  "streams, query, key, value, residual, at L one"},
                 {"depth_weights", "[C, j + 1]: a, a row for each stream, Z_0 first"},
                 {"key_input_norm", "[d]: gain of input.key.l"},
                 {"value_input_norm", "[d]: gain of input.value.l"}}},
      [](const NoSettings&, const MixerShape& shape) { return (shape.layers() + 13) / 4.0; });
}

}  // namespace attnres
