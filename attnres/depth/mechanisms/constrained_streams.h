// What manifold-constrained hyper-connections share (Xie et al., arXiv 2512.24880, Eqs. 7 and 8):
// streams (streams.h) whose maps come from all streams of a token together,
//   z = RMS(vec H) over the m d numbers of H, without a gain
//   a = sg(s1 P1 z + c1),  b = 2 sg(s2 P2 z + c2),  A = matrix(s3 P3 z + c3)
// sg: sigmoid. What `matrix` is tells mhc, mhc_lite and hc_identity apart.
//
// Start: P = 0, s = 0.01, c1 = c2 = 1 at stream l mod m and -1 elsewhere, l the site that reads or
// writes. The paper gives s; the c are those of the code of mHC-lite (arXiv 2601.05732).
//
// Every A here has rows that sum to one, so that it changes nothing at site 0, where all streams
// are equal. After the last sublayer only the streams' sum is read, and an A whose columns sum to
// one exactly changes nothing either. Ours is that such sites have the identity, and no P3, s3, c3.
#pragma once

#include <functional>
#include <vector>

#include "attnres/depth/mechanisms/streams.h"

namespace attnres {

// How A comes from its logits.
struct MixMatrix {
  std::vector<double> start;  // c3 at the start, one for each logit; empty: A is the identity
  bool keeps_sum = false;     // columns sum to one exactly: no effect after the last sublayer
  // [T, m, m] from logits [T, R] in float32 or better.
  std::function<at::Tensor(const at::Tensor& logits_TR)> of;
};

// What they say of themselves, but for `mix`: how A comes from its logits, and which sites have it.
std::string constrained_streams_details(const std::string& mix);
// `mix_rows`: those of A, after the others; empty if A is the identity. `without_read`: which sites
// have no a.
std::vector<RoleText> constrained_streams_roles(const std::string& mix_rows,
                                                const std::string& without_read = "none at site 0");

class ConstrainedStreams : public StreamMixer {
 public:
  ConstrainedStreams(int64_t streams, MixMatrix matrix, const MixerShape& shape,
                     ParameterRegistry& parameters, bool single_pass = false);

 private:
  struct Site {
    // The rows are those of b, of a (where a site reads with it) and of A (where it is not the
    // identity).
    at::Tensor projection;  // P [rows, m D]
    at::Tensor bias;        // c [rows]
    at::Tensor scale;       // s, one for each of the maps
  };

  StreamMaps maps(const at::Tensor& streams_TMD, int l) const override;
  bool has_read(int l) const { return l > 0 || single_pass(); }

  MixMatrix matrix_;
  std::vector<Site> sites_;
};

}  // namespace attnres
