// LayerScale (Touvron et al., "Going deeper with Image Transformers", arXiv 2103.17239):
//   h_{l+1} = h_l + lambda_l * f_l(norm(h_l)),  h_0 = embedding
// lambda_l [d] is learned and multiplies channel by channel. It starts, in a network of J
// Transformer layers, at 0.1 for J <= 18, 1e-5 for J <= 24 and 1e-6 beyond. Each norm is RMSNorm
// with its own gain; the output site reads norm(h_L).
#include <ATen/ops/addcmul.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

double initial_scale(int layers) {
  if (layers <= 18) return 0.1;
  return layers <= 24 ? 1e-5 : 1e-6;
}

class LayerScale : public NormedMixer {
 public:
  LayerScale(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters) {
    for (int site = 0; site < shape.sublayers; ++site) {
      scales_.push_back(parameters.add(site, "layer_scale", ParameterKind::mixing, {shape.width},
                                       Init::constant(initial_scale(shape.layers()))));
    }
  }

 private:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open[0] = at::addcmul(state.open[0], y_TD, held(state, scales_[state.site]));
  }

  std::vector<at::Tensor> scales_;  // lambda_l
};

}  // namespace

Mechanism layer_scale_mechanism() {
  return define_mechanism<NoSettings, LayerScale>(
      {.name = "layer_scale",
       .formula = "h_{l+1} = h_l + lambda_l * f_l(norm(h_l))",
       .start = "lambda = 0.1 up to 18 Transformer layers, 1e-5 up to 24, 1e-6 beyond",
       .source = "LayerScale, arXiv 2103.17239",
       .traffic = "3d",
       .details = "h_0 = v_0; x_l = norm(h_l), at the output too.",
       .roles = {input_norm_role(), {"layer_scale", "[d]: lambda_l"}}},
      3);
}

}  // namespace attnres
