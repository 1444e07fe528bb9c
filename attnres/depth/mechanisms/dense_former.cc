// DenseFormer (Pagliardini et al., arXiv 2402.02622): a learned scalar for every pair of a place
// that reads and a source. The setting `form` says which places and which sources.
//
// "report", as in Table 5 of arXiv 2603.15031, between sublayers without residuals:
//   h_0 = v_0,  h_l = sum_{i=0..l} alpha_{i->l} v_i
// v_0 is the embedding, v_i the output of sublayer i-1. All alpha start at 1: residual.
//
// "original", depth-weighted averages (Section 3) of the outputs of Transformer layers, which keep
// their inner residuals:
//   X_0 = Z_0 = v_0,  Z_j = G_{j-1}(X_{j-1}),  X_j = sum_{i=0..j} alpha_{i->j} Z_i
//   G(X) = r + ffn(norm(r)),  r = X + attention(norm(X))
// The output reads X_J. alpha starts at 1 for i = j, else 0: residual. Every layer averages all
// that came before it (dilation 1, period 1).
//
// alpha ("depth_weights", a vector) of a site sits at that site; site 0 has none, as it reads the
// embedding itself.
#include <ATen/ops/add.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/gradient_slot.h"

namespace attnres {
namespace {

constexpr const char* kDenseFormerFormula =
    "h_l = sum_i alpha_{i->l} v_i, learned scalars; or the same of layers' outputs";

struct DenseFormerSettings {
  std::string form = "report";

  template <class V>
  void visit(V& v) {
    v("form", form, "what has a weight",
      one_of({{"report", "each sublayer's output"}, {"original", "each Transformer layer's"}}));
  }
  bool original() const { return form == "original"; }
  std::string formula(const MixerShape&) const {
    return original() ? "X_j = sum_{i<=j} alpha_{i->j} Z_i, learned scalars, Z_0 = v_0, Z_{j+1} = "
                        "G_j(X_j), G_j a Transformer layer"
                      : kDenseFormerFormula;
  }
};

class DenseFormer : public SourceMixer {
 public:
  DenseFormer(const DenseFormerSettings& settings, const MixerShape& shape,
              ParameterRegistry& parameters)
      : SourceMixer(shape, parameters),
        per_layer_(settings.original()),
        weights_(shape.sublayers + 1) {
    for (int site = 1; site <= shape.sublayers; ++site) {
      if (!mixes(site)) continue;
      const int64_t sources = 1 + (per_layer_ ? site / 2 : site);
      const Init newest = Init::by_index([=](int64_t i) { return i == sources - 1 ? 1.0 : 0.0; });
      weights_[site] = parameters.add(site, "depth_weights", ParameterKind::mixing, {sources},
                                      per_layer_ ? newest : Init::ones());
    }
  }

  StatePlan plan(int site) const override {
    return per_layer_ ? plan_of_layers(site, shape()) : SourceMixer::plan(site);
  }

  SublayerInput read(DepthState& state) const override {
    const int site = state.site;
    with_slots(state.sealed);
    at::Tensor h = state.sealed[0];
    if (!mixes(site)) {
      h = state.open[0];
    } else if (site > 0) {
      h = weighted_sum(state.sealed, held(state, weights_[site]));
    }
    if (per_layer_) carry(state, h);  // for the residual around the sublayer
    return normed(state, h);
  }

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    if (!per_layer_) return SourceMixer::absorb(state, y_TD);
    const at::Tensor sum = at::add(carried(state), y_TD);
    state.open.clear();
    const bool ends_layer = state.site % 2 == 1;
    (ends_layer ? state.sealed : state.open).push_back(sum);
  }

 private:
  // Whether a site reads the sources; the others, inside a layer, read its residual stream.
  bool mixes(int site) const { return !per_layer_ || site % 2 == 0; }

  bool per_layer_;
  std::vector<at::Tensor> weights_;  // by site
};

}  // namespace

Mechanism dense_former_mechanism() {
  return define_mechanism<DenseFormerSettings, DenseFormer>(
      {.name = "dense_former",
       .formula = kDenseFormerFormula,
       .start = "residual: alpha = 1; of layers' outputs: 1 for the newest, else 0",
       .source = "DenseFormer, arXiv 2402.02622; Table 5 of arXiv 2603.15031",
       .traffic = "(L + 3)/2 d; original: (J + 13)/4 d",
       .details = "x_l = norm(h_l). With form report, h_l = sum_{i=0..l} alpha_i v_i for l >= 1, "
                  "alpha = depth_weights.l; h_0 = v_0. With form original, Z_0 = X_0 = v_0 and X_j "
                  "= sum_{i=0..j} alpha_i Z_i for j = 1 .. J, alpha = depth_weights.2j; h_{2j} = "
                  "X_j, h_{2j+1} = X_j + y_{2j}, Z_{j+1} = X_j + y_{2j} + y_{2j+1}; h_L = X_J.",
       .roles = {input_norm_role(),
                 {"depth_weights",
                  "[sources]: alpha, v_0 or Z_0 first: l + 1 numbers at site l >= 1; with form "
                  "original j + 1 numbers at site 2j, j >= 1"}}},
      [](const DenseFormerSettings& settings, const MixerShape& shape) {
        return settings.original() ? (shape.layers() + 13) / 4.0 : (shape.sublayers + 3) / 2.0;
      });
}

}  // namespace attnres
