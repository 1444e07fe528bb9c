// Gated residuals (Qwen3.8-Next, arXiv 2608.30320; Qwen4ExpTextGatedResidual of transformers): n
// residual streams R_i of width d, which all start as the embedding and never mix among themselves.
// A sublayer reads their norms through gates of single channels, of low rank, and writes to each by
// a scalar:
//   N_i = g_i * RMS(R_i),  z = [N_1; ..; N_n] / n
//   x = 1/n sum_i G_i * N_i,  [G_1; ..; G_n] = sg(U silu(D z))
//   R_i <- R_i + s_i f(x),  s = 2 sg(W z)
// D [r, n d], U [n d, r], W [n, n d], no biases, sg the sigmoid. x takes the place of a norm before
// the sublayer. The output reads like a site, and has no W; no norm follows.
//
// g starts at one (theirs is 1 + g, g zero: the same). D, U and W start as the model's other maps,
// small random numbers: G near 1/2, s near 1. Were U and W zero, all streams would stay equal.
//
// What is read is one pass over the streams (ops/gated_streams), and what the scalars write another
// (ops/residual_streams).
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/ones.h>

#include <algorithm>

#include "attnres/depth/composed_mixer.h"
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/gated_streams/gated_streams.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/residual_streams/residual_streams.h"

namespace attnres {
namespace {

struct GatedResidualSettings {
  explicit GatedResidualSettings(const MixerShape& shape)
      : rank(std::max<int64_t>(1, shape.width / 8)) {}

  int64_t streams = 4;  // n
  int64_t rank;         // r

  template <class V>
  void visit(V& v) {
    v("streams", streams, "n, residual streams of a token", from_to(2, 16));
    v("rank", rank, "r, inner width of the map that the read gates come of",
      dimension(1).or_else("an eighth of the width"));
  }
};

class GatedResidual final : public ComposedMixer {
 public:
  GatedResidual(const GatedResidualSettings& settings, const MixerShape& shape,
                ParameterRegistry& parameters)
      : ComposedMixer(shape), streams_(settings.streams) {
    const int64_t d = shape.width, n = streams_, r = settings.rank;
    const Init drawn = Init::normal(shape.init_std);
    for (int l = 0; l <= shape.sublayers; ++l) {
      const auto add = [&](const char* role, at::IntArrayRef sizes) {
        return parameters.add(l, role, ParameterKind::matrix, sizes, drawn);
      };
      Site site;
      site.norm = parameters.add(l, "stream_norm", ParameterKind::norm_gain, {n, d}, Init::ones());
      site.gate_down = add("gate_down", {r, n * d});
      site.gate_up = add("gate_up", {n * d, r});
      if (l < shape.sublayers) site.write = add("write_gate", {n, n * d});
      sites_.push_back(site);
    }
  }

  DepthState start(const at::Tensor& embedding_TD) const override {
    return {.open = {embedding_TD.unsqueeze(1).repeat({1, streams_, 1})}};
  }

  StatePlan plan(int) const override {
    return {.open = {{.name = "streams", .sizes = {streams_, shape().width}}}};
  }

  SublayerInput read(DepthState& state) const override {
    const Site& site = sites_[state.site];
    // All that reads the streams here adds to one gradient.
    const at::Tensor& R_TND = state.open[0] = with_slot(state.open[0]);
    const GatedStreamsMaps maps = {site.norm, site.gate_down, site.gate_up, site.write};
    const GatedStreamsRead read = holds_weights(state)
                                      ? read_with_held(state, maps)
                                      : read_gated_streams(R_TND, maps, shape().norm_eps);
    if (site.write.defined()) carry(state, 2 * read.write_TN);
    show_mixed(state, read.x_TD);
    return {.x = read.x_TD};
  }

  at::Tensor running_state(const DepthState& state) const override { return state.open[0].mean(1); }

 private:
  struct Site {
    at::Tensor norm;                // g [n, D]
    at::Tensor gate_down, gate_up;  // D [r, n D], U [n D, r]
    at::Tensor write;               // W [n, n D]; undefined at the output
  };

  // With norms, gates and what is written by as they were.
  GatedStreamsRead read_with_held(const DepthState& state, const GatedStreamsMaps& maps) const {
    const at::Tensor &R_TND = state.open[0], one_D = at::ones({shape().width}, R_TND.options());
    const at::Tensor N_TND =
        normalize(state, R_TND, one_D, shape().norm_eps) * held(state, maps.norm_ND);
    const auto [gates_TND, write_TN] = stream_gates_composed(N_TND, maps);
    return {(held(state, gates_TND) * N_TND).mean(1),
            write_TN.defined() ? held(state, write_TN) : write_TN};
  }

  void absorb(DepthState& state, const at::Tensor& y_TD) const override {
    state.open[0] = write_streams(state.open[0], {/*mix_TMM=*/{}, carried(state), y_TD});
  }

  int64_t streams_;
  std::vector<Site> sites_;
};

}  // namespace

Mechanism gated_residual_mechanism() {
  return define_mechanism<GatedResidualSettings, GatedResidual>(
      {.name = "gated_residual",
       .formula = "R_i <- R_i + s_i f_l(1/n sum_i G_i * N_i), N_i = g_i * RMS(R_i), G = sg(U "
                  "silu(D N / n)), s "
                  "= 2 sg(W N / n)",
       .start = "G near 1/2, s near 1: near residual, its norms halved",
       .source = "Gated residual of Qwen3.8-Next, arXiv 2608.30320",
       .traffic = "(3n + 2)d",
       .details =
           "R is n x d, n = streams rows R_i, copies of v_0 at first. N_i = g_i * RMS(R_i), g_i "
           "row i of the gains; N is all of them, N_0 first, n d numbers. The n d gates G = sg(U "
           "silu(D N / n)), silu(x) = x sg(x); G_i are numbers i d to (i + 1) d - 1. h_l = x_l = "
           "(sum_i G_i * N_i) / n: no norm follows. Then R_i becomes R_i + s_i y_l, s = 2 sg(W N / "
           "n), with N of R before sublayer l. The output reads like a site: h_L = x_L.",
       .roles = {{"stream_norm", "[n, d]: g_i, a row for each stream"},
                 {"gate_down", "[rank, n d]: D"},
                 {"gate_up", "[n d, rank]: U"},
                 {"write_gate", "[n, n d]: W, a row for each stream; none at L"}}},
      // The streams read by a site and again by its write, and written; x written, y read.
      [](const GatedResidualSettings& settings, const MixerShape&) {
        return 3.0 * settings.streams + 2;
      });
}

}  // namespace attnres
