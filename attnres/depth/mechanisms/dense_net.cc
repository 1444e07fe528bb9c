#include "attnres/depth/mechanisms/dense_net.h"

#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/wide_linear.h"

namespace attnres {
namespace {

// A [d, sources * d] map whose output is the mean of the sources.
Init mean_of_sources(int64_t width, int64_t sources) {
  const int64_t columns = sources * width;
  return Init::by_index([=](int64_t i) {
    const bool same_channel = i % columns % width == i / columns;
    return same_channel ? 1.0 / static_cast<double>(sources) : 0.0;
  });
}

class DenseNet : public NormedMixer {
 public:
  DenseNet(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters) {
    const int64_t d = shape.width;
    for (int site = 0; site <= shape.sublayers; ++site) {
      const int64_t sources = site + 1;
      maps_.push_back(parameters.add(site, "dense_proj", ParameterKind::matrix, {d, sources * d},
                                     mean_of_sources(d, sources)));
    }
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.sealed = {embedding_TD}};
  }

  StatePlan plan(int site) const override { return plan_of_outputs(site, shape()); }

  SublayerInput read(DepthState& state) const override {
    const auto maps = held(state, maps_[state.site]).split(shape().width, /*dim=*/1);
    at::Tensor h_TD;
    for (size_t i = 0; i < maps.size(); ++i) {
      const at::Tensor& v_TD = state.sealed[i];
      h_TD = i == 0 ? wide_linear(v_TD, maps[i])
                    : at::addmm(h_TD, v_TD.to(h_TD.scalar_type()), maps[i].t());
    }
    return normed(state, h_TD);
  }

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.sealed.push_back(y_TD);
  }

 private:
  std::vector<at::Tensor> maps_;
};

}  // namespace

Mechanism dense_net_mechanism() {
  return define_mechanism<NoSettings, DenseNet>(
      {.name = "dense_net",
       .formula = "h_l = P_l [v_0; ..; v_l], P_l d x (l+1)d",
       .start = "P_l takes the mean of its sources (ours)",
       .source = "DenseNet, arXiv 1608.06993, Eq. 2; Table 5 of arXiv 2603.15031",
       .traffic = "(L + 3)/2 d",
       .details = "[;] is concatenation; x_l = norm(h_l).",
       .roles = {input_norm_role(),
                 {"dense_proj",
                  "[d, (l + 1) d]: P_l; its columns i d to (i + 1) d - 1 are for v_i"}}},
      [](const NoSettings&, const MixerShape& shape) { return (shape.sublayers + 3) / 2.0; });
}

}  // namespace attnres
