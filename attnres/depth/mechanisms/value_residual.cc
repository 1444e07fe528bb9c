// Value residual learning, ResFormer (Zhou et al., arXiv 2410.17897): the residual stream as it is,
// and in the attention of every Transformer layer but the first
//   v <- lambda_1 v_first + lambda_2 v
// v_first: the values of the first layer's attention for the same token. Each layer has its own
// lambda, 0.5 and 0.5 at the start; with `learned` false they stay there.
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/adapted_attention.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

constexpr double kStart = 0.5;
constexpr const char* kValueResidualFormula =
    "residual; in attention v <- lambda_1 v_first + lambda_2 v";

struct ValueResidualSettings {
  bool learned = true;

  template <class V>
  void visit(V& v) {
    v("learned", learned, "whether lambda_1 and lambda_2 are learned; else both stay 0.5");
  }
  std::string formula(const MixerShape&) const {
    return learned ? kValueResidualFormula : "residual; in attention v <- (v_first + v) / 2";
  }
};

class ValueResidual final : public AdaptedAttention {
 public:
  ValueResidual(const ValueResidualSettings& settings, const MixerShape& shape,
                ParameterRegistry& parameters)
      : AdaptedAttention(shape, parameters), lambdas_(shape.layers()) {
    if (!settings.learned) return;
    for (int layer = 1; layer < shape.layers(); ++layer) {
      lambdas_[layer] = parameters.add(2 * layer, "value_mix", ParameterKind::mixing, {2},
                                       Init::constant(kStart));
    }
  }

  StatePlan plan(int site) const override {
    StatePlan plan = ComposedMixer::plan(site);
    if (site > 0 && shape().layers() > 1) {
      plan.sealed = {{.name = "values of layer 1",
                      .sizes = {shape().kv_heads, shape().head_width()},
                      .axis = ShardAxis::heads,
                      .read = adapts(site) && site < shape().sublayers,
                      .last_reader = shape().sublayers - 2}};
    }
    return plan;
  }

 private:
  bool adapts(int site) const override { return site % 2 == 0 && shape().layers() > 1; }

  void adapt(DepthState& state, AttentionHeads& heads) const override {
    if (state.site == 0) {
      state.sealed = {heads.v};
      return;
    }
    const at::Tensor& first = state.sealed[0];
    const at::Tensor& lambda = lambdas_[state.site / 2];
    heads.v = lambda.defined() ? first * lambda[0] + heads.v * lambda[1]
                               : kStart * at::add(first, heads.v);
  }

  std::vector<at::Tensor> lambdas_;  // [2] by layer; undefined: fixed
};

// The residual stream's, and the first layer's values in J - 1 of the 2 J sublayers.
double value_residual_traffic(const ValueResidualSettings&, const MixerShape& shape) {
  const double layers = shape.layers();
  return 3 + (layers - 1) / (2 * layers) * static_cast<double>(shape.kv_heads) /
                 static_cast<double>(shape.heads);
}

}  // namespace

Mechanism value_residual_mechanism() {
  return define_mechanism<ValueResidualSettings, ValueResidual>(
      {.name = "value_residual",
       .formula = kValueResidualFormula,
       .start = "lambda_1 = lambda_2 = 0.5",
       .source = "ResFormer, arXiv 2410.17897",
       .traffic = "3d + (J - 1)/(2J) d H_kv/H",
       .details = "h_0 = v_0; x_l = norm(h_l), at the output too. v_first = heads.v.0. q and k "
                  "stay, and so do the values of layer 0. Not learned, lambda_1 = lambda_2 = 1/2 "
                  "in every layer j >= 1.",
       .roles =
           {input_norm_role(),
            {"value_mix",
             "[2]: lambda_1, lambda_2, at site 2j, j >= 1; none if not learned: both are 1/2"}}},
      value_residual_traffic);
}

}  // namespace attnres
