// Hyper-connections whose streams do not mix among themselves: mhc (constrained_streams.h) with A
// the identity,
//   H_j <- H_j + b_j f_l(norm(sum_i a_i H_i))
// This is iHC (identity hyper-connections, arXiv 2607.28611). It was first told of in the article
// "Your DeepSeek mHC might not need the m" (2026), which reports that replacing A by the identity
// alone does better than mHC. The article leaves a and b open; here they stay as mHC has them, as
// also in the model HY-V4 (HYV4HyperConnection of transformers).
#include "attnres/depth/define_mechanism.h"
#include "attnres/depth/mechanisms/constrained_streams.h"
#include "attnres/depth/mechanisms/mechanisms.h"

namespace attnres {
namespace {

using HcIdentitySettings = StreamSettings<16>;

class HcIdentity final : public ConstrainedStreams {
 public:
  HcIdentity(const HcIdentitySettings& settings, const MixerShape& shape,
             ParameterRegistry& parameters)
      : ConstrainedStreams(settings.streams, MixMatrix{}, shape, parameters) {}
};

}  // namespace

Mechanism hc_identity_mechanism() {
  return define_mechanism<HcIdentitySettings, HcIdentity>(
      {.name = "hc_identity",
       .formula = "H_j <- H_j + b_j f_l(norm(sum_i a_i H_i)), a and b sigmoid maps of H",
       .start = "as mhc: near residual",
       .source = "iHC, arXiv 2607.28611: mHC (arXiv 2512.24880) with its residual map the identity",
       .traffic = "(6m + 2)d",
       .details = constrained_streams_details("A is the identity."),
       .roles = constrained_streams_roles("")},
      // As mhc, less reading and writing the streams to mix them.
      [](const HcIdentitySettings& settings, const MixerShape&) {
        return 6.0 * settings.streams + 2;
      });
}

}  // namespace attnres
