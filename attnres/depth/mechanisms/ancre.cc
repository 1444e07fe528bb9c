// ANCRe, adaptive neural connection reassignment (Zhang et al., arXiv 2602.09009): how much of each
// earlier state a Transformer layer's shortcut carries is a learned, normalised scalar:
//   X_0 = v_0,  X_{j+1} = G_j(X_j) + sum_{i=0..j} p_{j,i} X_i,  p_j = softmax(c_j / tau)
//   G_j(X) = r + ffn(norm(r)),  r = X + attention(norm(X))
// for j = 0 .. J-1; the output reads X_J. v_0 is the embedding; X_i are mixed states, not outputs;
// G keeps its inner residuals, and its own output has weight 1. `temperature` is tau, 0.01 as in
// the authors' runs.
//
// c_j ("connections" [j+1], at the layer's feed-forward) starts at 0, where p_j is uniform. c_0 has
// one entry, whose softmax is 1 whatever it is, so it is left out. The softmax is in float32 or
// better. Equation numbers were not seen; the form is that of the authors' description and code.
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/softmax.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

struct AncreSettings {
  double temperature = 0.01;

  template <class V>
  void visit(V& v) {
    v("temperature", temperature, "by which logits are divided before the softmax", more_than(0));
  }
};

class Ancre : public SourceMixer {
 public:
  Ancre(const AncreSettings& settings, const MixerShape& shape, ParameterRegistry& parameters)
      : SourceMixer(shape, parameters),
        temperature_(settings.temperature),
        connections_(shape.layers()) {
    for (int layer = 1; layer < shape.layers(); ++layer) {
      connections_[layer] = parameters.add(2 * layer + 1, "connections", ParameterKind::mixing,
                                           {layer + 1}, Init::zeros());
    }
  }

  // `sealed` are X_0, X_1, ..; `open` is a layer's residual stream after its attention. X_i begins
  // layer i, and the shortcuts of this layer and all later ones carry it.
  StatePlan plan(int site) const override {
    StatePlan plan = plan_of_layers(site, shape());
    const bool in_layer = site % 2 == 1;
    for (PlannedTensor& X : plan.sealed) {
      const bool newest = &X == &plan.sealed.back();
      X.read = in_layer || newest;
      X.last_reader = shape().sublayers - (newest && site == shape().sublayers ? 0 : 1);
    }
    return plan;
  }

  SublayerInput read(DepthState& state) const override {
    with_slots(state.sealed);
    return normed(state, running_state(state));
  }

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    const at::Tensor sum = at::add(running_state(state), y_TD);
    const bool ends_layer = state.site % 2 == 1;
    if (ends_layer) {
      state.open.clear();
      state.sealed.push_back(at::add(sum, shortcut(state)));
    } else {
      state.open = {sum};
    }
  }

 private:
  // sum_i p_{j,i} X_i of the layer j at work.
  at::Tensor shortcut(const DepthState& state) const {
    const at::Tensor& c = connections_[state.site / 2];
    if (!c.defined()) return state.sealed[0];
    const at::Tensor weights = at::softmax(at::div(c.to(compute_dtype(c)), temperature_), 0);
    return weighted_sum(state.sealed, held(state, weights));
  }

  double temperature_;
  std::vector<at::Tensor> connections_;  // by layer
};

}  // namespace

Mechanism ancre_mechanism() {
  return define_mechanism<AncreSettings, Ancre>(
      {.name = "ancre",
       .formula = "X_{j+1} = G_j(X_j) + sum_i softmax_i(c_j / tau) X_i, G_j a Transformer layer",
       .start = "c = 0: the mean of the earlier states is added",
       .source = "ANCRe, arXiv 2602.09009",
       .traffic = "(J + 11)/4 d",
       .details = "X_0 = v_0; h_{2j} = X_j, h_{2j+1} = r = X_j + y_{2j}, G_j(X_j) = r + y_{2j+1}; "
                  "h_L = X_J; x_l = norm(h_l). The sum is over i = 0 .. j; tau = temperature. "
                  "Layer 0 has one X to weigh, by 1, and no c.",
       .roles = {input_norm_role(),
                 {"connections", "[j + 1]: c_j, X_0 first, at site 2j + 1, j >= 1"}}},
      [](const AncreSettings&, const MixerShape& shape) { return (shape.layers() + 11) / 4.0; });
}

}  // namespace attnres
