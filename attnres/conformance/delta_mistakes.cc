#include "attnres/conformance/delta_mistakes.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include <algorithm>
#include <cmath>

#include "attnres/depth/composed_mixer.h"

namespace attnres {
namespace {

// `sealed` are r_0 .. r_l, the residual stream before every site so far. Each read starts anew from
// them.
class MistakenDelta final : public ComposedMixer {
 public:
  MistakenDelta(Mistake mistake, const DeltaAttnResSettings& settings, const MixerShape& shape,
                const ParameterRegistry& parameters)
      : ComposedMixer(shape), mistake_(mistake), block_size_(settings.block_size) {
    for (int l = 0; l <= shape.sublayers; ++l) {
      const auto find = [&](const char* role) {
        const Parameter* parameter = parameters.find(l, role);
        return parameter == nullptr ? at::Tensor() : parameter->tensor;
      };
      sites_.push_back(
          {find("pseudo_query"), find("key_norm"), find("mixture_gate"), find("input_norm")});
    }
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.sealed = {embedding_TD}};
  }

  StatePlan plan(int site) const override { return plan_of_outputs(site, shape()); }

  SublayerInput read(DepthState& state) const override {
    const at::Tensor mixed = mix(state.site, state.sealed);
    show_mixed(state, mixed);
    return {normalize(state, mixed, sites_[state.site].input_norm, shape().norm_eps)};
  }

 private:
  struct Site {
    at::Tensor query, key_gain, gate, input_norm;  // undefined where a site has none
  };

  bool is(Mistake mistake) const { return mistake_ == mistake; }

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.sealed.push_back(state.sealed.back() + y_TD);
  }

  // Of site l, from r_0 .. r_l.
  std::vector<at::Tensor> sources_of(int64_t l, const std::vector<at::Tensor>& r) const {
    const bool released = is(Mistake::released_delta_blocks);
    const bool recursive = released || is(Mistake::recursive_blocks);
    const bool late = released || is(Mistake::block_seen_late);
    std::vector<at::Tensor> sources = {r[0]};
    for (int64_t begin = 0; begin < l; begin += block_size_) {
      const int64_t end = std::min(begin + block_size_, l);
      const bool finished = end == begin + block_size_;
      if (!finished && (released || is(Mistake::open_block_left_out))) break;
      if (finished && end == l && late) break;
      at::Tensor value = r[end];
      if (!is(Mistake::cumulative_with_embedding)) {
        value = value - (finished && recursive ? sources.back() : r[begin]);
      }
      sources.push_back(value);
    }
    return sources;
  }

  // h_l from r_0 .. r_l.
  at::Tensor mix(int l, const std::vector<at::Tensor>& r) const {
    const Site& site = sites_[l];
    if (!site.query.defined()) return r[l];
    const at::Tensor mixture = mixture_of(site, sources_of(l, r));
    if (is(Mistake::stream_replaced)) return mixture;
    if (!site.gate.defined()) return r[l] + mixture;
    const bool scaled = is(Mistake::stream_scaled_by_gate);
    return (scaled ? (1 - site.gate) * r[l] : r[l]) + site.gate * mixture;
  }

  at::Tensor mixture_of(const Site& site, const std::vector<at::Tensor>& sources) const {
    std::vector<at::Tensor> scores, values;
    for (const at::Tensor& source : sources) {
      const at::Tensor mean = source.square().mean(-1, /*keepdim=*/true);
      const at::Tensor rms = (mean + shape().norm_eps).sqrt();
      const double width = static_cast<double>(shape().width);
      const double scale = is(Mistake::scaled_scores) ? 1 / std::sqrt(width) : 1;
      const at::Tensor normed = source / rms;
      scores.push_back(scale * (site.query * site.key_gain * normed).sum(-1, /*keepdim=*/true));
      values.push_back(is(Mistake::values_normalized) ? normed : source);
    }
    return (at::softmax(at::stack(scores), 0) * at::stack(values)).sum(0);
  }

  Mistake mistake_;
  int64_t block_size_;
  std::vector<Site> sites_;
};

constexpr KnownMistake kDeltaMistakes[] = {
    {Mistake::scaled_scores, "scaled_scores",
     "scores are divided by sqrt(d): depth attention has no such factor"},
    {Mistake::values_normalized, "values_normalized",
     "values are RMS(v): only keys are normalised, values are the sources as they are"},
    {Mistake::cumulative_with_embedding, "cumulative_with_embedding",
     "sources are the residual stream at block ends: take what each block added to it"},
    {Mistake::recursive_blocks, "recursive_blocks",
     "a block is the residual stream less the block before it: take the stream at the block's "
     "end less the stream at its beginning"},
    {Mistake::open_block_left_out, "open_block_left_out",
     "the open block is no source: what it has added so far is one"},
    {Mistake::block_seen_late, "block_seen_late",
     "a block's first sublayer does not see the block before: seal that before the site reads"},
    {Mistake::released_delta_blocks, "released_delta_blocks",
     "blocks are as in the paper's released code, which takes the stream less the block before, "
     "lets a block's first sublayer not see that one, and leaves the open block out: b_n is what "
     "block n added to the stream, a source from its first output on"},
    {Mistake::stream_replaced, "stream_replaced",
     "sublayers read the mixture alone: they read the residual stream plus it"},
    {Mistake::stream_scaled_by_gate, "stream_scaled_by_gate",
     "the gate takes from the stream what it gives to the mixture: h = r + a m, not (1 - a) r + a "
     "m"},
};

}  // namespace

std::span<const KnownMistake> delta_mistakes() {
  return kDeltaMistakes;
}

std::unique_ptr<DepthMixer> make_mistaken_delta(Mistake mistake,
                                                const DeltaAttnResSettings& settings,
                                                const MixerShape& shape,
                                                const ParameterRegistry& parameters) {
  return std::make_unique<MistakenDelta>(mistake, settings, shape, parameters);
}

}  // namespace attnres
