// ReZero (Bachlechner et al., arXiv 2003.04887):
//   h_{l+1} = h_l + a_j f_l(h_l),  h_0 = embedding
// a_j is a learned scalar, shared by the two sublayers of Transformer layer j = l / 2 (it sits at
// site 2j). There is no norm anywhere, at the output neither. It starts at a = 0, where every site
// reads the embedding.
#include <ATen/ops/addcmul.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

class ReZero : public ComposedMixer {
 public:
  ReZero(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : ComposedMixer(shape) {
    for (int site = 0; site < shape.sublayers; site += 2) {
      weights_.push_back(parameters.add(site, "residual_weight", ParameterKind::mixing, {1},
                                        Init::zeros(), Shard::none, {site, site + 1}));
    }
  }

 private:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open[0] = at::addcmul(state.open[0], y_TD, held(state, weights_[state.site / 2]));
  }

  std::vector<at::Tensor> weights_;  // a_j
};

}  // namespace

Mechanism rezero_mechanism() {
  return define_mechanism<NoSettings, ReZero>(
      {.name = "rezero",
       .formula = "h_{l+1} = h_l + a_j f_l(h_l), no norms",
       .start = "a = 0: every site reads the embedding",
       .source = "ReZero, arXiv 2003.04887",
       .traffic = "3d",
       .details = "h_0 = v_0; x_l = h_l at every site.",
       .roles = {{"residual_weight", "[1]: a_j, at site 2j; of sublayers 2j and 2j + 1"}}},
      3);
}

}  // namespace attnres
