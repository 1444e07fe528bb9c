// Highway networks (Srivastava et al., arXiv 1505.00387, Eq. 3, the carry gate 1 - g):
//   h_{l+1} = (1 - g_l) * h_l + g_l * f_l(norm(h_l)),  h_0 = embedding
//   g_l = sigmoid(W_l h_l + b_l)
// W_l [d, d] and b_l [d] are learned. Each norm is RMSNorm with its own gain; the output site reads
// norm(h_L).
//
// Ours: W = 0 and b = -2 at first (the paper: a negative bias), so that every gate opens by 0.12;
// the gate reads h_l before its norm.
#include <ATen/ops/lerp.h>
#include <ATen/ops/sigmoid.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

class Highway : public NormedMixer {
 public:
  Highway(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters) {
    for (int site = 0; site < shape.sublayers; ++site) {
      gates_.push_back({parameters.add(site, "transform_gate", ParameterKind::matrix,
                                       {shape.width, shape.width}, Init::zeros()),
                        parameters.add(site, "transform_gate_bias", ParameterKind::mixing,
                                       {shape.width}, Init::constant(-2))});
    }
  }

 private:
  struct Gate {
    at::Tensor weight, bias;
  };

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const Gate& gate = gates_[state.site];
    const at::Tensor& h_TD = state.open[0];
    const at::Tensor g_TD = at::sigmoid(wide_linear(h_TD, gate.weight, gate.bias));
    state.open[0] = at::lerp(h_TD, y_TD, held(state, g_TD).to(h_TD.scalar_type()));
  }

  std::vector<Gate> gates_;
};

}  // namespace

Mechanism highway_mechanism() {
  return define_mechanism<NoSettings, Highway>(
      {.name = "highway",
       .formula = "h_{l+1} = (1 - g) * h_l + g * f_l(norm(h_l)), g = sigmoid(W_l h_l + b_l)",
       .start = "W = 0, b = -2: gates of 0.12",
       .source = "Highway networks, arXiv 1505.00387, Eq. 3",
       .traffic = "6d",
       .details =
           "h_0 = v_0; x_l = norm(h_l), at the output too. The gate reads h_l before its norm.",
       .roles = {input_norm_role(),
                 {"transform_gate", "[d, d]: W_l"},
                 {"transform_gate_bias", "[d]: b_l"}}},
      // The gate reads h and writes g; the merge reads h, y and g and writes h.
      6);
}

}  // namespace attnres
