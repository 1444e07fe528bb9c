// PostNorm, the original Transformer's residual connection (Vaswani et al., arXiv 1706.03762,
// section 3.1, with RMSNorm for LayerNorm):
//   h_{l+1} = norm_l(h_l + f_l(h_l)),  h_0 = embedding
// f_l is sublayer l, norm_l RMSNorm with a gain [d] of its own that starts at one. Sublayers read
// h_l as it is, and so does the output, which the last norm has normed already.
#include <ATen/ops/add.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

class PostNorm : public ComposedMixer {
 public:
  PostNorm(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : ComposedMixer(shape),
        post_norms_(add_norms(parameters, shape.sublayers - 1, "post_norm", shape)) {}

 private:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open[0] =
        normalize(state, at::add(state.open[0], y_TD), post_norms_[state.site], shape().norm_eps);
  }

  std::vector<at::Tensor> post_norms_;
};

}  // namespace

Mechanism post_norm_mechanism() {
  return define_mechanism<NoSettings, PostNorm>(
      {.name = "post_norm",
       .formula = "h_{l+1} = norm(h_l + f_l(h_l))",
       .start = "nothing of its own",
       .source = "PostNorm, arXiv 1706.03762, section 3.1",
       .traffic = "3d",
       .details = "h_0 = v_0; x_l = h_l at every site.",
       .roles = {{"post_norm", "[d]: gain of norm_l, after sublayer l"}}},
      3);
}

}  // namespace attnres
