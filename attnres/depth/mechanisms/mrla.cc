// Multi-head recurrent layer attention (Fang et al., arXiv 2302.03985), one head per channel and
// sigmoids for the softmax, as in Table 5 of arXiv 2603.15031:
//   h_l = sum_{i=0..l} sg(q_l) * sg(k_i) * u_i      all products by channel
// v_0 is the embedding (ours: a source too), v_i the output of sublayer i-1, sg the sigmoid, and
//   q_l = query_conv_l (x) v_l,  k_i = key_conv_i (x) v_i    across channels, zeros beyond the ends
//   u_i[t] = sum_{s=0..2} value_conv_i[s] * v_i[t - 2 + s]   by channel, over the last 3 tokens
// Query and key kernels have m taps, m the odd number that is (log2(d) + 1) / 2 rounded down, or
// the next; value kernels 3 x d. As weight and value of a source do not depend on who reads it, the
// sum is carried along: S_l = S_{l-1} + sg(k_l) * u_l, h_l = sg(q_l) * S_l.
//
// The paper pools q and k over the pixels of an image and convolves values over 3 x 3 of them. Over
// tokens the pool would see the future, so there is none, and the convolution is causal (ours);
// tokens before the first are zeros. While decoding, the last two tokens of every source are kept.
//
// Ours: query and key kernels start at 0 and value kernels at the token itself; then h is a quarter
// of the residual stream, which the input norm takes away but for eps.
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/zeros.h>

#include <cmath>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/layers/tensor_parallel.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr int64_t kValueTaps = 3;
constexpr int64_t kHistory = kValueTaps - 1;  // earlier tokens that a value reads

int64_t channel_taps(int64_t width) {
  const auto near = static_cast<int64_t>((std::log2(static_cast<double>(width)) + 1) / 2);
  return near % 2 == 1 ? near : near + 1;
}

// sum_s taps[s] * padded[.., s .. s + length, ..] along `dim`; a tap is a number or one a channel.
at::Tensor convolve(const at::Tensor& padded, const at::Tensor& taps, int64_t dim, int64_t length) {
  at::Tensor sum;
  for (int64_t s = 0; s < taps.size(0); ++s) {
    const at::Tensor shifted = padded.narrow(dim, s, length), tap = taps.select(0, s);
    sum = s == 0 ? at::mul(shifted, tap) : at::addcmul(sum, shifted, tap);
  }
  return sum;
}

// `open` is S of the sites before (none before site 0), then v, the source that comes next.
class Mrla : public NormedMixer {
 public:
  Mrla(const NoSettings&, const MixerShape& shape, ParameterRegistry& parameters)
      : NormedMixer(shape, parameters),
        kept_in_(parameters.precision().activations),
        group_(parameters.group()) {
    const int64_t d = shape.width;
    const Init token_itself =
        Init::by_index([d](int64_t i) { return i / d == kHistory ? 1.0 : 0.0; });
    for (int site = 0; site <= shape.sublayers; ++site) {
      const auto add = [&](const char* role, at::IntArrayRef sizes, const Init& init) {
        return parameters.add(site, role, ParameterKind::mixing, sizes, init);
      };
      kernels_.push_back({add("query_conv", {channel_taps(d)}, Init::zeros()),
                          add("key_conv", {channel_taps(d)}, Init::zeros()),
                          add("value_conv", {kValueTaps, d}, token_itself)});
    }
  }

  std::vector<KeptTensor> kept(int /*site*/) const override {
    return {{.name = "last tokens of the newest source",
             .of = KeptTensor::Of::sequence,
             .sizes = {kHistory, shape().width},
             .dtype = kept_in_}};
  }

  StatePlan plan(int site) const override {
    const std::vector<int64_t> sizes = {shape().width};
    StatePlan plan;
    if (site > 0) plan.open.push_back({.name = "sum", .sizes = sizes});
    plan.open.push_back({.name = "newest source", .sizes = sizes, .halo = kHistory});
    return plan;
  }

  SublayerInput read(DepthState& state) const override {
    const Kernels& kernels = kernels_[state.site];
    const at::Tensor& v = state.open.back();
    const at::Tensor padded = pad_channels(v);
    const at::Tensor key = gate(state, padded, kernels.key), value = value_of(state, v);
    const at::Tensor sum =
        state.site == 0 ? at::mul(key, value) : at::addcmul(state.open[0], key, value);
    carry(state, sum);
    return normed(state, at::mul(gate(state, padded, kernels.query), sum));
  }

  at::Tensor running_state(const DepthState& state) const override { return state.open.back(); }

 protected:
  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open = {carried(state), y_TD};
  }

 private:
  struct Kernels {
    at::Tensor query, key, value;
  };

  // `v` with zeros beyond its first and last channel, as gates read it.
  static at::Tensor pad_channels(const at::Tensor& v_TD) {
    const int64_t beyond = channel_taps(v_TD.size(1)) / 2;
    return at::constant_pad_nd(v_TD.to(compute_dtype(v_TD)), {beyond, beyond});
  }

  // The sigmoid of a convolution across channels.
  at::Tensor gate(const DepthState& state, const at::Tensor& padded, const at::Tensor& taps) const {
    const at::Tensor sum =
        convolve(padded, taps.to(padded.scalar_type()), /*dim=*/1, shape().width);
    return held(state, at::sigmoid(sum).to(taps.scalar_type()));
  }

  // Each process of a tensor group has some tokens, whose values read others'.
  at::Tensor value_of(const DepthState& state, const at::Tensor& own_TD) const {
    if (group_ == nullptr) return values_of_all(state, own_TD);
    require(state.sequence.spans != nullptr, "mrla: whose tokens these are, their spans must say");
    const at::Tensor v_TD = gather_tokens(*group_, own_TD, state.sequence.spans->tokens());
    return part_of_rows(group_->part(), values_of_all(state, v_TD));
  }

  at::Tensor values_of_all(const DepthState& state, const at::Tensor& v_TD) const {
    const std::shared_ptr<const Spans> spans = spans_of(state.sequence, v_TD.size(0));
    PageStore* store = spans->store();
    const int layer = state.sequence.layer;
    const at::Tensor taps = held(state, kernels_[state.site].value);
    return spans->by_group([&](const SpanGroup& group) {
      const at::Tensor v_BTD = spans->batch(v_TD, group);
      const at::Tensor earlier =
          store != nullptr ? store->read_states(layer, 0, *spans, group)
                           : at::zeros({v_BTD.size(0), kHistory, v_BTD.size(2)}, v_TD.options());
      const at::Tensor padded = at::cat({earlier, v_BTD}, 1);
      if (store != nullptr) {
        store->write_states(layer, 0, *spans, group, padded.narrow(1, group.tokens, kHistory));
      }
      return convolve(padded, taps, /*dim=*/1, group.tokens);
    });
  }

  at::ScalarType kept_in_;
  const TensorGroup* group_;
  std::vector<Kernels> kernels_;
};

}  // namespace

Mechanism mrla_mechanism() {
  return define_mechanism<NoSettings, Mrla>(
      {.name = "mrla",
       .formula = "h_l = sum_i sg(q_l) * sg(k_i) * u_i, q, k, u convolutions of v_l, v_i, v_i",
       .start = "a quarter of the residual stream (ours)",
       .source = "MRLA, arXiv 2302.03985; Table 5 of arXiv 2603.15031",
       .traffic = "3d",
       .details = "i = 0 .. l; x_l = norm(h_l). Across channels, m taps, zeros beyond the first "
                  "and last: q_l[c] = sum_s query_conv.l[s] v_l[c - (m - 1)/2 + s], and k_i the "
                  "same by key_conv.i of v_i. Over tokens t of one sequence, zeros before the "
                  "first: u_i[t] = sum_{s=0..2} value_conv.i[s] * v_i[t - 2 + s].",
       .roles = {input_norm_role(),
                 {"query_conv",
                  "[m]: taps across channels, m odd; the middle one is for the channel itself"},
                 {"key_conv", "[m]: the same, of the key of source v_l"},
                 {"value_conv",
                  "[3, d]: taps over tokens for each channel, of the value of source v_l; the last "
                  "row is for the token itself"}}},
      3);
}

}  // namespace attnres
