// Keel (Chen and Wei, "Post-LayerNorm Is Back: Stable, ExpressivE, and Deep", arXiv 2601.19895):
// PostNorm over a residual path weighted by the depth, with a second norm before each sublayer.
//   h_{l+1} = norm_l(alpha_l h_l + f_l(norm(h_l))),  h_0 = embedding
// alpha_l = L, the number of sublayers, but 1 in the first Transformer layer (sites 0 and 1); site
// 0 has no outer norm: h_1 = h_0 + f_0(norm(h_0)). Norms are RMSNorm, each with a gain [d] of its
// own that starts at one. The output reads h_L as it is, which the last norm has normed already.
#include <ATen/ops/add.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

class Keel : public ComposedMixer {
 public:
  Keel(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : ComposedMixer(shape),
        input_norms_(add_norms(parameters, shape.sublayers - 1, "input_norm", shape)),
        post_norms_(shape.sublayers) {
    for (int site = 1; site < shape.sublayers; ++site) {
      post_norms_[site] = add_norm(parameters, site, "post_norm", shape);
    }
  }

  SublayerInput read(DepthState& state) const override {
    const at::Tensor& h_TD = state.open[0];
    show_mixed(state, h_TD);
    if (state.site == shape().sublayers) return {.x = h_TD};
    return {.x = normalize(state, h_TD, input_norms_[state.site], shape().norm_eps)};
  }

 private:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const int64_t alpha = state.site < 2 ? 1 : shape().sublayers;
    const at::Tensor sum_TD = at::add(y_TD, state.open[0], alpha);
    const at::Tensor& gain = post_norms_[state.site];
    state.open[0] = gain.defined() ? normalize(state, sum_TD, gain, shape().norm_eps) : sum_TD;
  }

  std::vector<at::Tensor> input_norms_;
  std::vector<at::Tensor> post_norms_;  // undefined at site 0
};

}  // namespace

Mechanism keel_mechanism() {
  return define_mechanism<NoSettings, Keel>(
      {.name = "keel",
       .formula = "h_{l+1} = norm(L h_l + f_l(norm(h_l))); layer 0 with 1 for L",
       .start = "nothing of its own",
       .source = "Keel, arXiv 2601.19895",
       .traffic = "3d",
       .details = "h_0 = v_0; x_l = norm(h_l), but x_L = h_L. Site 0 has no outer norm: h_1 = v_0 "
                  "+ y_0; site 1 has one, with h_1 counted once: h_2 = norm(h_1 + y_1).",
       .roles = {{"input_norm", "[d]: gain of x_l = norm(h_l), l < L"},
                 {"post_norm", "[d]: gain of the outer norm after sublayer l, 1 <= l < L"}}},
      3);
}

}  // namespace attnres
