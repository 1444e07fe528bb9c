// DeepCrossAttention (Heddes et al., arXiv 2502.06785): the query, key and value inputs of a
// Transformer layer are three generalised residuals (GRN-v3) over the embedding and the outputs of
// the layers before it:
//   g = sum_i (b_i + relu(w . RMS(v_i))) * v_i            its own b and w for g_q, g_k, g_v
//   o = attention(norm(g_q), norm(g_k), norm(g_v))
//   v_{j+1} = o + ffn(norm(o + g_q))
// v_0 is the embedding, v_{j+1} the output of layer j without its residual; b_i and w are vectors
// of size d ("query_bias" [sources, d], "query_score" [d], and so on); the score w . RMS(v_i) is
// one number for all channels. The output reads one more g ("bias", "score").
//
// `recent_layers` keeps the state small (the paper's k-DCA, k = 2 there).
//
// b starts at 1. With w = 0 this is residual, but there relu has no gradient and w would never
// move; so w starts at random, its scores about 1e-3. Not verified against the paper: that the
// feed-forward's residual is g_q, the norm inside g (RMS without gain, which w would absorb), and
// the g at the output; a public reimplementation has all three.
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

constexpr double kStartingScore = 1e-3;

constexpr const char* kDcaFormula =
    "query, key and value inputs are sums sum_i (b_i + relu(w . RMS(v_i))) * v_i of layers' "
    "outputs";

struct DcaSettings {
  int64_t recent_layers = 0;

  template <class V>
  void visit(V& v) {
    v("recent_layers", recent_layers,
      "k, at most the number of Transformer layers: sources are v_0, the newest k outputs and the "
      "sum of those between; 0 for all outputs",
      at_least(0));
  }
  void check(const MixerShape& shape) const {
    require_usage(recent_layers <= shape.layers(),
                  "model.depth_mixing.recent_layers: expected 0 (all) to {} (Transformer layers), "
                  "got {}",
                  shape.layers(), recent_layers);
  }
  std::string formula(const MixerShape&) const {
    if (recent_layers == 0) return kDcaFormula;
    return fmt::format("{}: of v_0, the newest {}, and the sum of those between", kDcaFormula,
                       recent_layers);
  }
  // Sources of layer j, or of the output for j = J.
  int64_t sources(int64_t layer) const {
    return recent_layers == 0 ? layer + 1 : std::min(layer + 1, recent_layers + 2);
  }
};

class Dca : public SourceMixer {
 public:
  Dca(const DcaSettings& settings, const MixerShape& shape, ParameterRegistry& parameters)
      : SourceMixer(shape, parameters), settings_(settings) {
    for (int layer = 0; layer <= shape.layers(); ++layer) {
      const int site = 2 * layer;
      Layer& own = layers_.emplace_back();
      const auto add_residual = [&](const std::string& prefix) {
        const auto add = [&](const char* role, at::IntArrayRef sizes, const Init& init) {
          return parameters.add(site, prefix + role, ParameterKind::mixing, sizes, init);
        };
        own.residuals.push_back(
            {add("bias", {settings.sources(layer), shape.width}, Init::ones()),
             add("score", {shape.width}, Init::normal(kStartingScore / std::sqrt(shape.width)))});
      };
      if (site == shape.sublayers) {
        add_residual("");
        continue;
      }
      for (const char* stream : {"query_", "key_", "value_"}) add_residual(stream);
      own.key_norm = add_norm(parameters, site, "key_input_norm", shape);
      own.value_norm = add_norm(parameters, site, "value_input_norm", shape);
    }
  }

  SublayerNeeds needs(int site) const override { return {.separate_qkv = site % 2 == 0}; }

  // `sealed` are the sources; with recent_layers only v_0, and `open` begins with the others. After
  // a layer's attention `open` ends with o + g_q and o, and g_q is carried through it.
  StatePlan plan(int site) const override {
    const std::vector<int64_t> sizes = {shape().width};
    StatePlan plan = plan_of_layers(site, shape());
    plan.open.clear();
    if (settings_.recent_layers > 0) {
      plan.sealed.resize(1);
      const int64_t layers = site / 2, kept = std::min(layers, settings_.recent_layers + 1);
      for (int64_t i = layers - kept + 1; i <= layers; ++i) {
        const bool middle = kept > settings_.recent_layers && i == layers - kept + 1;
        plan.open.push_back(
            {.name = middle ? "middle layers" : source_name("layer", i), .sizes = sizes});
      }
    }
    const bool in_layer = site % 2 == 1;
    if (in_layer) {
      plan.open.push_back({.name = "attention and its query sum", .sizes = sizes});
      plan.open.push_back({.name = "attention", .sizes = sizes});
    }
    return plan;
  }

  SublayerInput read(DepthState& state) const override {
    const bool in_layer = state.site % 2 == 1;
    if (in_layer) return normed(state, running_state(state));
    const Layer& layer = layers_[state.site / 2];
    const std::vector<at::Tensor> g = generalized_residuals(state, layer);
    SublayerInput input = normed(state, g[0]);
    if (g.size() == 1) return input;
    show_stream(state, "key", g[1]);
    show_stream(state, "value", g[2]);
    input.key = normalize(state, g[1], layer.key_norm, shape().norm_eps);
    input.value = normalize(state, g[2], layer.value_norm, shape().norm_eps);
    carry(state, g[0]);
    return input;
  }

  at::Tensor running_state(const DepthState& state) const override {
    const bool in_layer = state.site % 2 == 1;
    if (in_layer) return state.open[state.open.size() - 2];
    return state.open.empty() ? state.sealed.back() : state.open.back();
  }

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const bool ends_layer = state.site % 2 == 1;
    if (!ends_layer) {
      state.open.push_back(at::add(carried(state), y_TD));
      state.open.push_back(y_TD);
      return;
    }
    const at::Tensor output = at::add(state.open.back(), y_TD);
    state.open.resize(state.open.size() - 2);
    if (settings_.recent_layers == 0) {
      state.sealed.push_back(output);
      return;
    }
    state.open.push_back(output);
    const bool middle_grows = state.open.size() > static_cast<size_t>(settings_.recent_layers) + 1;
    if (middle_grows) {
      state.open[1] = at::add(state.open[0], state.open[1]);
      state.open.erase(state.open.begin());
    }
  }

 private:
  struct Residual {
    at::Tensor bias, score;  // b, w
  };
  struct Layer {
    std::vector<Residual> residuals;  // of query, key, value; the output has one
    at::Tensor key_norm, value_norm;  // the query's is the input norm
  };

  // relu(w . RMS(v)) for each w of scores_RD: [T, 1] each.
  std::vector<at::Tensor> dynamic_weights(const DepthState& state, const at::Tensor& v_TD,
                                          const at::Tensor& scores_RD) const {
    const at::ScalarType type = compute_dtype(v_TD);
    const at::Tensor v = v_TD.to(type);
    const at::Tensor inverse_rms = at::rsqrt(v.square().mean(-1, true).add(shape().norm_eps));
    const at::Tensor scores = at::mul(at::linear(v, scores_RD.to(type)), inverse_rms);
    return held(state, at::relu(scores).to(v_TD.scalar_type())).split(1, /*dim=*/-1);
  }

  std::vector<at::Tensor> generalized_residuals(const DepthState& state, const Layer& layer) const {
    std::vector<at::Tensor> sources = state.sealed;
    sources.insert(sources.end(), state.open.begin(), state.open.end());
    std::vector<at::Tensor> score_vectors;
    std::vector<std::vector<at::Tensor>> biases;  // by residual and source
    for (const Residual& residual : layer.residuals) {
      score_vectors.push_back(residual.score);
      biases.push_back(held(state, residual.bias).unbind(0));
    }
    const at::Tensor scores_RD = at::stack(score_vectors);
    std::vector<at::Tensor> g(layer.residuals.size());
    for (size_t i = 0; i < sources.size(); ++i) {
      const at::Tensor& v = sources[i];
      const auto dynamic = dynamic_weights(state, v, scores_RD);
      for (size_t r = 0; r < g.size(); ++r) {
        const at::Tensor& b = biases[r][i];
        g[r] = at::addcmul(i == 0 ? at::mul(v, b) : at::addcmul(g[r], v, b), v, dynamic[r]);
      }
    }
    return g;
  }

  DcaSettings settings_;
  std::vector<Layer> layers_;  // by layer; the output is the last
};

double dca_traffic(const DcaSettings& settings, const MixerShape& shape) {
  double moved = 0;
  for (int64_t layer = 0; layer < shape.layers(); ++layer) {
    const bool middle_grows = settings.recent_layers > 0 && layer > settings.recent_layers + 1;
    // Before attention: the sources, o for the newest of them; out come that source, g_q and
    // perhaps the middle. Before the feed-forward: o and g_q.
    moved += static_cast<double>(settings.sources(layer)) + 3 + (middle_grows ? 1 : 0) + 2;
  }
  return moved / shape.sublayers;
}

}  // namespace

Mechanism dca_mechanism() {
  return define_mechanism<DcaSettings, Dca>(
      {.name = "dca",
       .formula = kDcaFormula,
       .start = "residual but for scores of about 1e-3: b = 1, w small",
       .source = "DeepCrossAttention, arXiv 2502.06785",
       .traffic = "(J + 11)/4 d; k recent layers: at most (k + 8)/2 d",
       .details =
           "v_0 = embedding, v_{j+1} = y_{2j} + y_{2j+1}, the output of layer j (so v_i is not "
           "y_{i-1} here). g = sum_i (b_i + relu(w . RMS(s_i))) * s_i over sources s_i in this "
           "order, at the output with j = J: v_0, v_1, .., v_j; with recent_layers k > 0 first "
           "v_0, then, where j > k, the one sum v_1 + .. + v_{j-k}, then the newest k of v_1 .. "
           "v_j, or all of them where j <= k, the oldest first: v_{j-k+1}, .., v_j. Each g has its "
           "own b and w: mixed.2j = g_query, mixed.key.2j and "
           "mixed.value.2j; input.2j, input.key.2j, input.value.2j are their norms. h_{2j+1} = "
           "y_{2j} + g_query, x_{2j+1} = norm(h_{2j+1}). h_L is one more g.",
       .roles = {input_norm_role(),
                 {"query_bias",
                  "[sources, d]: b of the query sum, a row for each source, in their order"},
                 {"query_score", "[d]: w of the query sum"},
                 {"key_bias",
                  "[sources, d]: b of the key sum, a row for each source, in their order"},
                 {"key_score", "[d]: w of the key sum"},
                 {"value_bias",
                  "[sources, d]: b of the value sum, a row for each source, in their order"},
                 {"value_score", "[d]: w of the value sum"},
                 {"bias", "[sources, d]: b of the output's sum, likewise"},
                 {"score", "[d]: w of the output's sum"},
                 {"key_input_norm", "[d]: gain of input.key.l"},
                 {"value_input_norm", "[d]: gain of input.value.l"}}},
      dca_traffic);
}

}  // namespace attnres
