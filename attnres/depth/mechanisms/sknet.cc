// Selective kernels (Li et al., SKNet, arXiv 1903.06586, Eqs. 1 to 6) over depth: the branches are
// the embedding and the outputs of all sublayers, and every channel chooses among them:
//   z_l = relu(norm(W_l sum_i v_i))                     fuse
//   a_{l,i} = softmax_i(B_{l,i} z_l), per channel       select
//   h_l = sum_{i=0..l} a_{l,i} * v_i
// v_0 is the embedding, v_i the output of sublayer i-1; W_l ("fuse_proj") is m x d with
// m = max(d / 16, 32), as in the paper; norm is RMSNorm over m with a gain ("fuse_norm") where the
// paper has a batch norm; B_l ("select_proj") stacks the B_{l,i}, d x m each. The softmax is in
// float32 or better. Site 0 has one source and reads it.
//
// Ours: z is a token's own, where the paper pools over the pixels of an image, which over tokens
// would see the future. B starts at 0: h is the mean of the sources, which the input norm turns
// into a residual stream but for eps. W starts with variance 1/d.
#include <ATen/ops/add.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

class SkNet : public SourceMixer {
 public:
  SkNet(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : SourceMixer(shape, parameters), selectors_(shape.sublayers + 1) {
    const int64_t d = shape.width, m = std::max<int64_t>(d / 16, 32);
    for (int site = 1; site <= shape.sublayers; ++site) {
      const auto add = [&](const char* role, ParameterKind kind, at::IntArrayRef sizes,
                           const Init& init) {
        return parameters.add(site, role, kind, sizes, init);
      };
      selectors_[site] = {
          add("fuse_proj", ParameterKind::matrix, {m, d}, Init::normal(1 / std::sqrt(d))),
          add("fuse_norm", ParameterKind::norm_gain, {m}, Init::ones()),
          add("select_proj", ParameterKind::matrix, {(site + 1) * d, m}, Init::zeros())};
    }
  }

  SublayerInput read(DepthState& state) const override {
    return normed(state, state.site == 0 ? state.sealed[0] : select(state));
  }

 private:
  struct Selector {
    at::Tensor fuse, fuse_norm, select;
  };
  // The sum of the first `sources` sources, which the sites carry on.
  struct Cache : DepthCache {
    at::Tensor sum;
    size_t sources = 0;
  };

  static at::Tensor sum_of_sources(DepthState& state) {
    if (!state.cache) state.cache = std::make_unique<Cache>();
    Cache& cache = static_cast<Cache&>(*state.cache);
    for (; cache.sources < state.sealed.size(); ++cache.sources) {
      const at::Tensor& v = state.sealed[cache.sources];
      cache.sum = cache.sources == 0 ? v : at::add(cache.sum, v);
    }
    return cache.sum;
  }

  at::Tensor select(DepthState& state) const {
    const Selector& selector = selectors_[state.site];
    const auto& sources = state.sealed;
    const at::Tensor z = at::relu(rms_norm(wide_linear(sum_of_sources(state), selector.fuse),
                                           selector.fuse_norm, shape().norm_eps));
    const auto num_sources = static_cast<int64_t>(sources.size());
    const at::Tensor scores_TND = wide_linear(z, selector.select).unflatten(-1, {num_sources, -1});
    const auto weights = held(state, at::softmax(scores_TND, 1, compute_dtype(scores_TND)))
                             .to(sources[0].scalar_type())
                             .unbind(1);
    at::Tensor h = at::mul(weights[0], sources[0]);
    for (size_t i = 1; i < sources.size(); ++i) h = at::addcmul(h, weights[i], sources[i]);
    return h;
  }

  std::vector<Selector> selectors_;  // by site
};

}  // namespace

Mechanism sknet_mechanism() {
  return define_mechanism<NoSettings, SkNet>(
      {.name = "sknet",
       .formula = "h_l = sum_i a_i * v_i, a = softmax_i(B_i z) per channel, "
                  "z = relu(norm(W sum_i v_i))",
       .start = "B = 0: the mean of the sources",
       .source = "SKNet, arXiv 1903.06586, Eqs. 1 to 6",
       .traffic = "(L + 3)/2 d",
       .details = "h_0 = v_0; x_l = norm(h_l). The norm in z is over its m numbers; a_i, and the "
                  "softmax over i, by channel.",
       .roles = {input_norm_role(),
                 {"fuse_proj", "[m, d]: W of site l >= 1"},
                 {"fuse_norm", "[m]: gain of the norm in z"},
                 {"select_proj",
                  "[(l + 1) d, m]: rows i d to (i + 1) d - 1 are B_i, of source v_i"}}},
      [](const NoSettings&, const MixerShape& shape) { return (shape.sublayers + 3) / 2.0; });
}

}  // namespace attnres
