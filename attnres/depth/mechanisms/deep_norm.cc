// DeepNorm (Wang et al., "DeepNet: Scaling Transformers to 1,000 Layers", arXiv 2203.00555), as for
// decoders of J Transformer layers:
//   h_{l+1} = norm_l(alpha h_l + f_l(h_l)),  alpha = (2J)^(1/4),  h_0 = embedding
// norm_l is RMSNorm (the paper: LayerNorm) with a gain [d] that starts at one. Sublayers and the
// output read h_l as it is. The value and output maps of attention and all maps of the feed-forward
// start (8J)^(-1/4) times as large as without it, the query and key maps as ever.
#include <ATen/ops/add.h>

#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

class DeepNorm : public ComposedMixer {
 public:
  DeepNorm(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : ComposedMixer(shape),
        alpha_(std::pow(2.0 * shape.layers(), 0.25)),
        beta_(std::pow(8.0 * shape.layers(), -0.25)),
        post_norms_(add_norms(parameters, shape.sublayers - 1, "post_norm", shape)) {}

  SublayerNeeds needs(int) const override { return {.init_gain = beta_}; }

 private:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open[0] = normalize(state, at::add(y_TD, state.open[0], alpha_), post_norms_[state.site],
                              shape().norm_eps);
  }

  double alpha_;
  double beta_;
  std::vector<at::Tensor> post_norms_;
};

}  // namespace

Mechanism deep_norm_mechanism() {
  return define_mechanism<NoSettings, DeepNorm>(
      {.name = "deep_norm",
       .formula = "h_{l+1} = norm(alpha h_l + f_l(h_l)), alpha = (2J)^(1/4)",
       .start = "v, attention output and feed-forward maps times (8J)^(-1/4)",
       .source = "DeepNorm, arXiv 2203.00555",
       .traffic = "3d",
       .details = "h_0 = v_0; x_l = h_l at every site.",
       .roles = {{"post_norm", "[d]: gain of the norm after sublayer l"}}},
      3);
}

}  // namespace attnres
