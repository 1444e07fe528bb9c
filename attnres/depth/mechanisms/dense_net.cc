// Dense connections (Huang et al., DenseNet, arXiv 1608.06993, Eq. 2), as Table 5 of arXiv
// 2603.15031 carries them over to sublayers:
//   h_l = P_l [v_0; v_1; ..; v_l] = sum_i P_{l,i} v_i
// v_0 is the embedding, v_i the output of sublayer i-1, [;] concatenation, P_l a linear map
// d x (l+1)d ("dense_proj") of site l = 0 .. L, P_{l,i} its columns i d .. (i+1)d - 1.
//
// DenseNet's bottleneck of batch norm, relu and a 1x1 convolution is that map alone; what it pools
// are pixels, of which a token has one. Ours: it starts as the mean, P_{l,i} = I / (l+1), which the
// input norm turns into a residual stream but for eps.
#include <ATen/ops/addmm.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"

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

class DenseNet : public SourceMixer {
 public:
  DenseNet(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : SourceMixer(shape, parameters) {
    const int64_t d = shape.width;
    for (int site = 0; site <= shape.sublayers; ++site) {
      const int64_t sources = site + 1;
      maps_.push_back(parameters.add(site, "dense_proj", ParameterKind::matrix, {d, sources * d},
                                     mean_of_sources(d, sources)));
    }
  }

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
