// What the mechanisms share that carry m residual streams a token, H of m rows of width d
// (hyper-connections and what came of them). Sublayer l reads one mixture of the streams, its
// output goes to all of them, and the streams mix among themselves:
//   h_l = sum_i a_i H_i,   H_j <- sum_i A_ji H_i + b_j f_l(norm(h_l))
// H starts as m copies of the embedding and ends as the sum of its streams, which the output site
// normalises. Each mechanism says how a, b and A come about.
//
// At site 0 every mixture is the embedding times s = sum_i a_i: ours is that the site reads the
// embedding itself, and that no mechanism has an `a` there. Where s > 0 the input norm makes the
// same of both, but for eps / s^2 in place of eps. The gates of mhc and its kin are positive. The
// `a` of hyper_connections can be anything: with s < 0 its input would be the negative.
//
// In a single pass (DeepSeek-V4.1-Flash, arXiv 2609.19969, section 2.4.1) a site reads with the `a`
// of the site before it, which came of the streams before they were written, so that a kernel can
// read a token's streams once for both; and the output reads with that of the last sublayer's site
// in the place of the sum.
#pragma once

#include <ATen/core/Tensor.h>

#include "attnres/depth/composed_mixer.h"
#include "attnres/support/config_key.h"

namespace attnres {

template <int64_t kLargest>
struct StreamSettings {
  int64_t streams = 4;

  template <class V>
  void visit(V& v) {
    v("streams", streams, "m, residual streams of a token", from_to(2, kLargest));
  }
};

// The maps of one site, a set for each token.
struct StreamMaps {
  at::Tensor read;   // a [T, m], of this site, whose is unused at site 0; or of the next
  at::Tensor write;  // b [T, m]
  at::Tensor mix;    // A [T, m, m], a row for each new stream; undefined: the identity
};

class StreamMixer : public NormedMixer {
 public:
  StreamMixer(int64_t streams, const MixerShape& shape, ParameterRegistry& parameters,
              bool single_pass = false);

  DepthState start(const at::Tensor& embedding_TD) const final;
  StatePlan plan(int site) const final;
  SublayerInput read(DepthState& state) const final;
  // The mean of the streams.
  at::Tensor running_state(const DepthState& state) const final;

 protected:
  // The maps of a sublayer's site for streams [T, m, D], in float32 or better.
  virtual StreamMaps maps(const at::Tensor& streams_TMD, int site) const = 0;
  void absorb(DepthState& state, const at::Tensor& y_TD) const final;

  int64_t streams() const { return streams_; }
  bool single_pass() const { return single_pass_; }

 private:
  int64_t streams_;
  bool single_pass_;
};

}  // namespace attnres
