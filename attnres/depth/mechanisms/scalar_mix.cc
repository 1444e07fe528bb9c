// The scalar mix of ELMo (Peters et al., "Deep contextualized word representations", N18-1202,
// Eq. 1) over a PreNorm residual network:
//   h_{l+1} = h_l + f_l(norm(h_l)),  h_0 = embedding
//   h_out = sum_{j=0..J} softmax(s)_j X_j,  the head reads gamma norm(h_out)
// X_j is h before Transformer layer j, X_J what the last one leaves, J the number of layers. The
// logits s, one for each of the J + 1 states, and the scalar gamma are learned and sit at the
// output site; s = 0 and gamma = 1 at first, where h_out is the mean of the X_j. Each norm is
// RMSNorm with its own gain.
//
// Ours: gamma stands after the final norm, which would undo it before.
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/softmax.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

// The state's open tensors. The mix has the terms so far, so that no X_j need be kept.
enum ScalarMixStream { kResidual, kMix };

class ScalarMix : public NormedMixer {
 public:
  ScalarMix(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters),
        layer_logits_(parameters.add(shape.sublayers, "layer_logits", ParameterKind::mixing,
                                     {shape.layers() + 1}, Init::zeros(), Shard::none,
                                     terms_added_at(shape))),
        gamma_(parameters.add(shape.sublayers, "gamma", ParameterKind::mixing, {1}, Init::ones())) {
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.open = {embedding_TD, at::mul(embedding_TD, weight(0))}};
  }

  StatePlan plan(int) const override {
    const std::vector<int64_t> sizes = {shape().width};
    return {.open = {{.name = "stream", .sizes = sizes}, {.name = "mix", .sizes = sizes}}};
  }

  SublayerInput read(DepthState& state) const override {
    const bool at_output = state.site == shape().sublayers;
    const at::Tensor& h_TD = state.open[at_output ? kMix : kResidual];
    const at::Tensor x_TD = normed(state, h_TD).x;
    return {.x = at_output ? at::mul(x_TD, gamma_) : x_TD};
  }

 private:
  // The sites that add a term to the mix: at the start, and after each Transformer layer.
  static std::vector<int> terms_added_at(const MixerShape& shape) {
    std::vector<int> sites = {0};
    for (int site = 1; site < shape.sublayers; site += 2) sites.push_back(site);
    return sites;
  }

  // softmax(s)_j
  at::Tensor weight(int64_t j) const {
    const auto precise = c10::promoteTypes(layer_logits_.scalar_type(), at::kFloat);
    return at::softmax(layer_logits_, 0, precise)[j];
  }

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open[kResidual] = at::add(state.open[kResidual], y_TD);
    const int next = state.site + 1;
    if (next % 2 == 0) {
      state.open[kMix] =
          at::add(state.open[kMix], at::mul(state.open[kResidual], held(state, weight(next / 2))));
    }
  }

  at::Tensor layer_logits_;  // s
  at::Tensor gamma_;
};

}  // namespace

Mechanism scalar_mix_mechanism() {
  return define_mechanism<NoSettings, ScalarMix>(
      {.name = "scalar_mix",
       .formula = "residual; output = gamma norm(sum_j softmax(s)_j X_j)",
       .start = "s = 0, gamma = 1: the mean of the states before layers and of the last",
       .source = "ELMo, N18-1202, Eq. 1",
       .traffic = "4d",
       .details = "h_0 = v_0; x_l = norm(h_l). X_j = h_{2j} for j < J, X_J = what the last "
                  "sublayer leaves; h_L = sum_j softmax(s)_j X_j, x_L = gamma norm(h_L).",
       .roles = {{"input_norm", "[d]: gain of norm(h_l)"},
                 {"layer_logits", "[J + 1]: s, X_0 first, at site L"},
                 {"gamma", "[1]: gamma, at site L"}}},
      // The residual, and the mix read and written once a Transformer layer.
      4);
}

}  // namespace attnres
