// Manifold-constrained hyper-connections (Xie et al., arXiv 2512.24880, Eqs. 7 to 9), with the maps
// and starts of constrained_streams.h and
//   A = the last of `sinkhorn_rounds` rounds of Sinkhorn's normalisation of exp(mat(s3 P3 z + c3)):
//       each divides the columns by their sums, then the rows
// The rows of A sum to one to rounding. Its columns do within 1e-6 where the logits have a standard
// deviation of about one; near a permutation 20 rounds may leave 1e-2, which the
// output's sum sees: so A stands after the last sublayer too. The rounds run on logarithms, which
// no logit overflows.
//
// With `single_pass` (streams.h) the `a` of a site, at site 0 too, is for the next one, and starts
// as that one's would; the output reads with the last sublayer's, in the place of the sum.
//
// Start: c3 = 0 on the diagonal and -8 off it (the code of mHC-lite; the paper does not say), near
// the identity. The streams start as copies of the embedding and end as their sum.
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/constrained_streams.h"
#include "attnres/depth/mechanisms/mechanisms.h"
#include "attnres/ops/sinkhorn/sinkhorn.h"

namespace attnres {
namespace {

struct MhcSettings : StreamSettings<16> {
  int64_t sinkhorn_rounds = 20;
  bool single_pass = false;

  template <class V>
  void visit(V& v) {
    StreamSettings::visit(v);
    v("sinkhorn_rounds", sinkhorn_rounds, "rounds of Sinkhorn's normalisation", from_to(1, 1000));
    v("single_pass", single_pass,
      "whether a site reads with weights of the streams before they were last written, so that a "
      "kernel can read them once (DeepSeek-V4.1-Flash)");
  }
  std::string formula(const MixerShape& shape) const;
};

MixMatrix doubly_stochastic(const MhcSettings& settings) {
  const int64_t m = settings.streams;
  MixMatrix matrix;
  for (int64_t i = 0; i < m * m; ++i) matrix.start.push_back(i / m == i % m ? 0 : -8);
  matrix.of = [m, rounds = settings.sinkhorn_rounds](const at::Tensor& logits_TR) {
    return sinkhorn(logits_TR.unflatten(-1, {m, m}), rounds);
  };
  return matrix;
}

class Mhc final : public ConstrainedStreams {
 public:
  Mhc(const MhcSettings& settings, const MixerShape& shape, ParameterRegistry& parameters)
      : ConstrainedStreams(settings.streams, doubly_stochastic(settings), shape, parameters,
                           settings.single_pass) {}
};

std::string MhcSettings::formula(const MixerShape& /*shape*/) const {
  return single_pass
             ? "H <- A H + b f_l(norm(a' H)), a and b sigmoid maps of H, A doubly stochastic, a' "
               "the "
               "a of the site before, of H before it was written"
             : "H <- A H + b f_l(norm(a H)), a and b sigmoid maps of H, A doubly stochastic";
}

// In one pass the streams are read and written once, with x and y; else as Table 1 has it.
double mhc_traffic(const MhcSettings& settings, const MixerShape& /*shape*/) {
  return (settings.single_pass ? 2.0 : 8.0) * static_cast<double>(settings.streams) + 2;
}

}  // namespace

Mechanism mhc_mechanism() {
  return define_mechanism<MhcSettings, Mhc>(
      {.name = "mhc",
       .formula = MhcSettings().formula({}),
       .start = "A within 1e-3 of the identity, a and b larger at stream l mod m: near residual",
       .source = "mHC, arXiv 2512.24880, Eqs. 7 to 9; single_pass: DeepSeek-V4.1-Flash, arXiv "
                 "2609.19969, section 2.4.1",
       .traffic = "(8m + 2)d; single_pass: (2m + 2)d",
       .details =
           constrained_streams_details(
               "A: exp of its logits; then, sinkhorn_rounds times, every column is divided by its "
               "sum, then every row by its own. Site 0 has no A: its rows sum to one, and the "
               "streams are equal.") +
           " With single_pass every site l < L has an a, site 0 too, made like the others of H "
           "before sublayer l, but for the next site: h_{l+1} = sum_i a_i H_i with this a and H "
           "before sublayer l + 1; so also h_L, in the place of the sum.",
       .roles =
           constrained_streams_roles("; m^2 of A, A_ij in row i m + j of them (none at site 0)",
                                     "none at site 0, but with single_pass")},
      mhc_traffic);
}

}  // namespace attnres
