// HybridNorm (Zhuo et al., arXiv 2503.04598): the norms of attention are inside it, those of the
// feed-forward after the addition. Of Transformer layer j:
//   u = norm_j(h + attention(h)),  h = u + ffn(u),  h = embedding at first
// where attention reads h as it is and norms each head's queries, keys and values, before rotary
// positions, by RMSNorm over the head's channels. The gains of q, k and v are one [head width]
// each, shared by the heads; norm_j has a gain [d]. All start at one. The output site norms h.
//
// The state that a feed-forward reads, and shows as its mixed input, is u. That layer 0 of the
// starred variant keeps the norms of q, k and v is as the authors' published settings have it.
#include <ATen/ops/add.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {
namespace {

struct HybridNormSettings {
  bool first_layer_pre_norm = false;

  template <class V>
  void visit(V& v) {
    v("first_layer_pre_norm", first_layer_pre_norm,
      "the starred variant: layer 0 is PreNorm, h += f(norm(h)) for both of its sublayers, with "
      "the norms of q, k and v kept");
  }
};

bool is_attention(int site) {
  return site % 2 == 0;
}

class HybridNorm : public ComposedMixer {
 public:
  HybridNorm(const HybridNormSettings& settings, const MixerShape& shape,
             ParameterRegistry& parameters)
      : ComposedMixer(shape), settings_(settings) {
    for (int l = 0; l <= shape.sublayers; ++l) {
      Site site;
      if (l == shape.sublayers || is_pre_norm(l)) {
        site.norm = add_norm(parameters, l, "input_norm", shape);
      } else if (!is_attention(l)) {
        site.norm = add_norm(parameters, l, "input_norm", shape, /*used_at=*/{l - 1});
      }
      if (l < shape.sublayers && is_attention(l)) {
        const auto add_head_norm = [&](const char* role) {
          return parameters.add(l, role, ParameterKind::norm_gain, {shape.head_width()},
                                Init::ones());
        };
        site.q_norm = add_head_norm("q_norm");
        site.k_norm = add_head_norm("k_norm");
        site.v_norm = add_head_norm("v_norm");
      }
      sites_.push_back(site);
    }
  }

  SublayerNeeds needs(int site) const override { return {.adapt_heads = is_attention(site)}; }

  SublayerInput read(DepthState& state) const override {
    const Site& site = sites_[state.site];
    const at::Tensor& h_TD = state.open[0];
    const bool norms_here = state.site == shape().sublayers || is_pre_norm(state.site);
    SublayerInput input;
    input.x = norms_here ? normalize(state, h_TD, site.norm, shape().norm_eps) : h_TD;
    if (site.q_norm.defined()) {
      input.adapt_heads = [&site, eps = shape().norm_eps](AttentionHeads& heads) {
        heads.q = rms_norm(heads.q, site.q_norm, eps);
        heads.k = rms_norm(heads.k, site.k_norm, eps);
        heads.v = rms_norm(heads.v, site.v_norm, eps);
      };
    }
    show_mixed(state, h_TD);
    return input;
  }

 private:
  struct Site {
    at::Tensor norm;                    // undefined where attention reads h as it is
    at::Tensor q_norm, k_norm, v_norm;  // undefined but at attentions
  };

  bool is_pre_norm(int site) const { return settings_.first_layer_pre_norm && site < 2; }

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    at::Tensor h_TD = at::add(state.open[0], y_TD);
    const int next = state.site + 1;
    if (!is_attention(next) && next < shape().sublayers && !is_pre_norm(next)) {
      h_TD = normalize(state, h_TD, sites_[next].norm, shape().norm_eps);
    }
    state.open[0] = h_TD;
  }

  HybridNormSettings settings_;
  std::vector<Site> sites_;
};

}  // namespace

Mechanism hybrid_norm_mechanism() {
  return define_mechanism<HybridNormSettings, HybridNorm>(
      {.name = "hybrid_norm",
       .formula = "u = norm(h + attention(h)), h = u + ffn(u); q, k and v normed per head",
       .start = "nothing of its own",
       .source = "HybridNorm, arXiv 2503.04598",
       .traffic = "3d",
       .details =
           "h = v_0 at first. Attention reads h as it is: at even l, x_l = h_l. Feed-forwards read "
           "u: at odd l, h_l = x_l = u, after the norm. x_L = norm(h_L). Heads are normed over "
           "their own channels. With first_layer_pre_norm sites 0 and 1 are as in residual, x_l = "
           "norm(h_l) and h_{l+1} = h_l + y_l, and their q, k and v are normed all the same.",
       .roles = {{"input_norm",
                  "[d]: gain at odd l of u = norm(h_{l-1} + y_{l-1}), at L of x_L; with "
                  "first_layer_pre_norm at l = 0 and 1 of x_l = norm(h_l)"},
                 {"q_norm", "[d / H]: gain of every head of q"},
                 {"k_norm", "[d / H]: of k"},
                 {"v_norm", "[d / H]: of v"}}},
      3);
}

}  // namespace attnres
