// SiameseNorm (Li et al., arXiv 2602.08064): a PostNorm-like stream x and a PreNorm-like stream y
// of every token, with the same sublayers:
//   o_l = f_l(norm(s_l)),  s_l = x_l + norm(y_l)
//   x_{l+1} = norm(x_l + o_l / c_l),  y_{l+1} = y_l + o_l
//   x_0 = norm(v_0),  y_0 = v_0,  v_0 the embedding;  c_l = sqrt(2 (j + 1)) in Transformer layer j
// The output reads like a site: norm(s_L). Every norm is RMSNorm with a gain [d] of its own, one at
// first: "x_norm" (of x_l), "y_norm" and "input_norm" (of s_l) at sites 0 .. L. s_l is what a site
// shows as its mixed input.
//
// Its settings are the paper's two stabilisers.
//
// The authors' language models also norm queries, keys and values; this mechanism leaves attention
// as it is, as their published vision models do.
#include <ATen/ops/add.h>

#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

struct SiameseNormSettings {
  bool depth_scaling = true;
  bool input_norm = true;

  template <class V>
  void visit(V& v) {
    v("depth_scaling", depth_scaling, "whether outputs are divided by c_l; without it c_l = 1");
    v("input_norm", input_norm,
      "whether s_l is normed; without it sublayers and the output read s_l itself");
  }
};

// The state's open tensors. The outer norm of x is taken where it is read.
enum SiameseStream { kY, kUnnormedX };

class SiameseNorm : public ComposedMixer {
 public:
  SiameseNorm(const SiameseNormSettings& settings, const MixerShape& shape,
              ParameterRegistry& parameters)
      : ComposedMixer(shape), settings_(settings) {
    for (int l = 0; l <= shape.sublayers; ++l) {
      Site site = {
          add_norm(parameters, l, "x_norm", shape), add_norm(parameters, l, "y_norm", shape), {}};
      if (settings.input_norm) site.input_norm = add_norm(parameters, l, "input_norm", shape);
      sites_.push_back(site);
    }
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.open = {embedding_TD, embedding_TD}};
  }

  StatePlan plan(int) const override {
    const std::vector<int64_t> sizes = {shape().width};
    return {.open = {{.name = "y", .sizes = sizes}, {.name = "x before its norm", .sizes = sizes}}};
  }

  SublayerInput read(DepthState& state) const override {
    const Site& site = sites_[state.site];
    const double eps = shape().norm_eps;
    const at::Tensor x_TD = normalize(state, state.open[kUnnormedX], site.x_norm, eps);
    const at::Tensor sum_TD = at::add(x_TD, normalize(state, state.open[kY], site.y_norm, eps));
    carry(state, x_TD);
    show_mixed(state, sum_TD);
    if (!settings_.input_norm) return {.x = sum_TD};
    return {.x = normalize(state, sum_TD, site.input_norm, eps)};
  }

 private:
  struct Site {
    at::Tensor x_norm, y_norm;
    at::Tensor input_norm;  // undefined without it
  };

  void absorb(DepthState& state, const at::Tensor& o_TD) const override {
    const int layer = state.site / 2;
    const double c = settings_.depth_scaling ? std::sqrt(2.0 * (layer + 1)) : 1.0;
    state.open[kUnnormedX] = at::add(carried(state), o_TD, 1 / c);
    state.open[kY] = at::add(state.open[kY], o_TD);
  }

  SiameseNormSettings settings_;
  std::vector<Site> sites_;
};

}  // namespace

Mechanism siamese_norm_mechanism() {
  return define_mechanism<SiameseNormSettings, SiameseNorm>(
      {.name = "siamese_norm",
       .formula = "o = f(norm(x + norm(y))), x = norm(x + o / c), y = y + o",
       .start = "x = norm(v_0), y = v_0",
       .source = "SiameseNorm, arXiv 2602.08064",
       .traffic = "5d",
       .details =
           "x and y are streams here: x_0 = norm(v_0), y_0 = v_0; mixed.l = s_l = x_l + norm(y_l); "
           "input.l = norm(s_l), at the output too (without the setting input_norm it is s_l); o_l "
           "= output.l; x_{l+1} = norm(x_l + o_l / c_l), y_{l+1} = y_l + o_l; c_l = sqrt(2 (j + "
           "1)) for Transformer layer j, without depth_scaling 1.",
       .roles = {{"x_norm",
                  "[d]: gain of the norm that gives x_l: x_norm.0 of norm(v_0), x_norm.l of what "
                  "sublayer l - 1 left"},
                 {"y_norm", "[d]: gain of norm(y_l) in s_l"},
                 {"input_norm", "[d]: gain of norm(s_l)"}}},
      5);
}

}  // namespace attnres
