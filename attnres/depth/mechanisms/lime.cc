// Layer-Integrated Memory (LIMe; Gerasimov et al., arXiv 2502.09245): the residual stream as it is,
// and attention with keys and values mixed over this and all earlier layers, for the same token
// before rotary positions. In Transformer layer j >= 1, for its key-value head h,
//   K'_h = sum_{i=0..j} sum_g R_{h,i,g} K_{i,g},   V'_h likewise with the same R
// K_{i,g}: what head g of layer i projected, un-mixed. R [H_kv, (j+1) H_kv], its columns in order
// of i then g. Layer 0 has none.
//
// Start: R the identity at i = j, elsewhere uniform within +-sqrt(3 / ((j+1) H_kv)), as the
// authors' code has it (the pseudocode of their Appendix E misplaces a bracket): not residual.
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>

#include <cmath>

#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/adapted_attention.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/layers/tensor_parallel.h"

namespace attnres {
namespace {

class Lime final : public AdaptedAttention {
 public:
  Lime(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : AdaptedAttention(shape, parameters),
        routers_(shape.layers()),
        heads_(shape.kv_heads),
        group_(parameters.group()),
        own_heads_(rows_of_part(parameters.part(), shape.kv_heads)) {
    for (int j = 1; j < shape.layers(); ++j) {
      const int64_t width = (j + 1) * heads_;
      const double bound = std::sqrt(3.0 / static_cast<double>(width));
      routers_[j] = parameters.add(2 * j, "router", ParameterKind::mixing, {heads_, width},
                                   {[=, own = j * heads_, uniform = Init::uniform(bound)](
                                        const RandomStream& random, int64_t i) {
                                     const int64_t row = i / width, column = i % width;
                                     if (column >= own) return column - own == row ? 1.0 : 0.0;
                                     return uniform.value(random, i);
                                   }});
    }
  }

  StatePlan plan(int site) const override {
    StatePlan plan = ComposedMixer::plan(site);
    plan.sealed = plan_of_keys_and_values(site, shape(), heads_);
    for (PlannedTensor& tensor : plan.sealed) tensor.mixes_heads = true;
    return plan;
  }

 private:
  bool adapts(int site) const override { return site % 2 == 0 && shape().layers() > 1; }

  // Sealed are k and v of every layer but the last, one layer after another.
  void adapt(DepthState& state, AttentionHeads& heads) const override {
    const int layer = state.site / 2;
    const AttentionHeads own = heads;
    if (layer > 0) {
      heads.k = mixed(state, layer, /*which=*/0, own.k);
      heads.v = mixed(state, layer, /*which=*/1, own.v);
    }
    if (layer + 1 < shape().layers()) {
      state.sealed.push_back(own.k);
      state.sealed.push_back(own.v);
    }
  }

  // Each process of a tensor group has some heads, which add their part to all mixed ones.
  at::Tensor mixed(const DepthState& state, int layer, int which, const at::Tensor& own) const {
    const auto router_of = [&](int i) {
      return routers_[layer]
          .narrow(1, i * heads_ + own_heads_.first, own_heads_.count)
          .to(own.scalar_type())
          .expand({own.size(0), -1, -1});
    };
    at::Tensor sum = at::bmm(router_of(layer), own);
    for (int i = 0; i < layer; ++i) {
      sum = at::baddbmm(sum, router_of(i), state.sealed[2 * i + which]);
    }
    return group_ == nullptr ? sum : sum_own_heads(*group_, sum);
  }

  std::vector<at::Tensor> routers_;  // by layer
  int64_t heads_;
  const TensorGroup* group_;
  RowRange own_heads_;
};

// The residual stream's, and once a layer: the keys and values of j earlier layers read, those of
// all layers but the last written.
double lime_traffic(const NoSettings&, const MixerShape& shape) {
  const double layers = shape.layers();
  return 3 + (layers - 1) * (layers + 2) / (2 * layers) * static_cast<double>(shape.kv_heads) /
                 static_cast<double>(shape.heads);
}

}  // namespace

Mechanism lime_mechanism() {
  return define_mechanism<NoSettings, Lime>(
      {.name = "lime",
       .formula = "residual; in attention K'_h = sum_{i<=j,g} R_{h,i,g} K_{i,g}, V' likewise",
       .start = "R the identity on the own layer, random on earlier ones",
       .source = "LIMe, arXiv 2502.09245",
       .traffic = "3d + (J - 1)(J + 2)/(2J) d H_kv/H",
       .details =
           "h_0 = v_0; x_l = norm(h_l), at the output too. K_{i,g} = heads.k.{2i}, head g, "
           "un-mixed; h and g are among the H_kv heads. q stays, and so do k and v of layer 0.",
       .roles = {input_norm_role(),
                 {"router",
                  "[H_kv, (j + 1) H_kv]: R at site 2j, j >= 1; row h, column i H_kv + g; the same "
                  "for k and v"}}},
      lime_traffic);
}

}  // namespace attnres
