// Dynamic hyper-connections (Zhu et al., arXiv 2409.19606, sections 2.1 and 2.2, Algorithm 2). With
// the m streams as the columns of H, d x m:
//   H <- H A + f(norm(H a)) b^T
//   [a | A] = static + s tanh(N W^T),  b = static' + s' tanh(N w^T),  N = norm of each stream of H
// so that stream i alone decides a_i, row i of A and b_i. m is the setting `streams`; H is as
// before the sublayer. norm: RMSNorm over d, one gain for all streams (the paper: LayerNorm).
//
// Start: W = w = 0, s = s' = 0.01, A the identity, b one, a one-hot at l mod m. Every stream is
// then the residual stream, and so is the output, m times. The last map of every sublayer starts
// sqrt(m) times larger, as the paper has it. Site 0 has no `a` (streams.h).
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tanh.h>

#include <cmath>

#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/depth/mechanisms/streams.h"
#include "attnres/ops/residual_streams/residual_streams.h"

namespace attnres {
namespace {

using HyperConnectionsSettings = StreamSettings<16>;

class HyperConnections final : public StreamMixer {
 public:
  HyperConnections(const HyperConnectionsSettings& settings, const MixerShape& shape,
                   ParameterRegistry& parameters)
      : StreamMixer(settings.streams, shape, parameters) {
    const int64_t m = settings.streams;
    for (int l = 0; l < shape.sublayers; ++l) {
      const auto add_mixing = [&](const char* role, at::IntArrayRef sizes, const Init& init) {
        return parameters.add(l, role, ParameterKind::mixing, sizes, init);
      };
      Site site;
      site.norm = add_norm(parameters, l, "stream_norm", shape);
      site.dynamic = parameters.add(l, "dynamic_maps", ParameterKind::matrix,
                                    {l == 0 ? m + 1 : m + 2, shape.width}, Init::zeros());
      site.mix = add_mixing("mix_map", {m, m},
                            Init::by_index([m](int64_t i) { return i / m == i % m ? 1.0 : 0.0; }));
      site.write = add_mixing("write_map", {m}, Init::ones());
      site.width_scale = add_mixing("width_scale", {1}, Init::constant(0.01));
      site.depth_scale = add_mixing("depth_scale", {1}, Init::constant(0.01));
      if (l > 0) {
        site.read = add_mixing(
            "read_map", {m}, Init::by_index([l, m](int64_t i) { return i == l % m ? 1.0 : 0.0; }));
      }
      sites_.push_back(site);
    }
  }

  SublayerNeeds needs(int) const override {
    return {.output_init_gain = std::sqrt(static_cast<double>(streams()))};
  }

 private:
  struct Site {
    at::Tensor norm;              // [D]
    at::Tensor dynamic;           // W and w: rows for A (m), b (1) and a (1, none at site 0)
    at::Tensor mix, write, read;  // static A [m, m], b [m], a [m]
    at::Tensor width_scale, depth_scale;  // s, s'
  };

  StreamMaps maps(const at::Tensor& streams_TMD, int l) const override {
    const Site& site = sites_[l];
    const int64_t m = streams();
    const at::Tensor dynamic_TMR =
        at::tanh(project_normalised(streams_TMD, site.dynamic * site.norm, shape().norm_eps));
    StreamMaps maps;
    maps.mix = (site.mix + site.width_scale * dynamic_TMR.narrow(-1, 0, m)).transpose(-1, -2);
    maps.write = site.write + site.depth_scale * dynamic_TMR.select(-1, m);
    if (l > 0) maps.read = site.read + site.width_scale * dynamic_TMR.select(-1, m + 1);
    return maps;
  }

  std::vector<Site> sites_;
};

}  // namespace

Mechanism hyper_connections_mechanism() {
  return define_mechanism<HyperConnectionsSettings, HyperConnections>(
      {.name = "hyper_connections",
       .formula = "H <- H A + f_l(norm(H a)) b^T; a, b, A static plus s tanh of maps of H",
       .start = "A = I, b = 1, a one-hot at l mod m: equals residual",
       .source = "Hyper-Connections, arXiv 2409.19606, Algorithm 2",
       .traffic = "(8m + 2)d",
       .details =
           "H is d x m, m = streams columns H_i, copies of v_0 at first. h_l = H a, x_l = "
           "norm(h_l), both from H before sublayer l, as are a, b and A; h_L is the sum of the "
           "columns. With N_i = norm(H_i), the gain stream_norm, stream i alone decides a_i, b_i "
           "and row i of A. Site 0 has no a: h_0 = v_0. There all streams are equal, and any a "
           "with a sum s > 0 gives s v_0, of which the norm makes the same x_0, but for norm_eps / "
           "s^2 in place of norm_eps; with s < 0 it would give -x_0.",
       .roles = {input_norm_role(),
                 {"stream_norm", "[d]: gain of N, the same for all streams"},
                 {"dynamic_maps",
                  "[m + 2, d]: row r < m: A_ir = mix_map_ir + width_scale tanh(row . N_i); row m: "
                  "b_i = write_map_i + depth_scale tanh(row . N_i); row m + 1: a_i = read_map_i + "
                  "width_scale tanh(row . N_i). Site 0 has m + 1 rows"},
                 {"mix_map", "[m, m]: static A; A_ir is what stream i gives to the new stream r"},
                 {"write_map", "[m]: static b"},
                 {"width_scale", "[1]: s of A and a"},
                 {"depth_scale", "[1]: s of b"},
                 {"read_map", "[m]: static a; none at site 0"}}},
      [](const HyperConnectionsSettings& settings, const MixerShape&) {
        return 8.0 * settings.streams + 2;
      });
}

}  // namespace attnres
