// Manifold-constrained hyper-connections (Xie et al., arXiv 2512.24880, Eqs. 7 to 9), with the maps
// and starts of constrained_streams.h and
//   A = the last of `sinkhorn_rounds` rounds of Sinkhorn's normalisation of exp(mat(s3 P3 z + c3)):
//       each divides the columns by their sums, then the rows
// The rows of A sum to one to rounding. Its columns do within 1e-6 where the logits have a standard
// deviation of about one; near a permutation 20 rounds may leave 1e-2, which the
// output's sum sees: so A stands after the last sublayer too. The rounds run on logarithms, which
// no logit overflows.
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

  template <class V>
  void visit(V& v) {
    StreamSettings::visit(v);
    v("sinkhorn_rounds", sinkhorn_rounds, "rounds of Sinkhorn's normalisation", from_to(1, 1000));
  }
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
      : ConstrainedStreams(settings.streams, doubly_stochastic(settings), shape, parameters) {}
};

}  // namespace

Mechanism mhc_mechanism() {
  return define_mechanism<MhcSettings, Mhc>(
      {.name = "mhc",
       .formula = "H <- A H + b f_l(norm(a H)), a and b sigmoid maps of H, A doubly stochastic",
       .start = "A within 1e-3 of the identity, a and b larger at stream l mod m: near residual",
       .source = "mHC, arXiv 2512.24880, Eqs. 7 to 9",
       .traffic = "(8m + 2)d",
       .details = constrained_streams_details(
           "A: exp of its logits; then, sinkhorn_rounds times, every column is divided by its sum, "
           "then every row by its own. Site 0 has no A: its rows sum to one, and the streams are "
           "equal."),
       .roles =
           constrained_streams_roles("; m^2 of A, A_ij in row i m + j of them (none at site 0)")},
      [](const MhcSettings& settings, const MixerShape&) { return 8.0 * settings.streams + 2; });
}

}  // namespace attnres
