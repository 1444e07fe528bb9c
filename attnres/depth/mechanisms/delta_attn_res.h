// Delta Attention Residuals (Luo et al., arXiv 2605.18855): the residual stream r stays, and every
// sublayer reads beside it what depth attention finds among the changes that made it,
//   h_l = r_l + a_l sum_i alpha_{i->l} b_i,  alpha_{i->l} = softmax_i( w_l . (g_l * RMS(b_i)) )
//   r_{l+1} = r_l + f_l(norm(h_l)),  r_0 = v_0
// The sources are those of Block Attention Residuals (block_attn_res.h): the embedding, what each
// finished block of `block_size` sublayers added to r, and what the open block has added so far, if
// anything. With blocks of one they are the embedding and every sublayer's output. The output reads
// r_L and mixes nothing.
//
// w_l starts at zero, g_l at one. a_l is learned and starts at zero, or at the number that `gate`
// is; with `gate: none` it is one. Where all gates are zero the model is a residual one, whatever
// the number of sources.
//
// The authors' code (github.com/wdlctc/delta-attention-residuals-code) learns a_l from zero, or its
// logit from -2 (a_l = 0.12), or has none. Its site 0 reads the embedding alone, as here: of a
// multiple of it the norm makes the same, but for eps. Its blocks are another thing than what they
// are meant to be: a finished block is r less the block before it, not r less what r was at the
// block's beginning; the attention that begins a block does not see the one just finished; and the
// open block is no source. These mistakes attnres diagnose knows (conformance/known_mistakes.h).
#pragma once

#include <string>

#include "attnres/depth/mechanism.h"
#include "attnres/support/config_key.h"
#include "attnres/support/json.h"

namespace attnres {

struct DeltaAttnResSettings {
  DeltaAttnResSettings() { gate.word = "zero"; }

  int64_t block_size = 1;  // S
  NumberOrWord gate = 0;   // what a_l starts at

  template <class V>
  void visit(V& v) {
    v("block_size", block_size,
      "S, sublayers of a block; at most as many as there are. With 1 every output is a source",
      at_least(1));
    v("gate", gate, "what the learned gate a_l of the mixture starts at",
      from_to(-100, 100).or_one_of({{"zero", "at 0, where the model is a residual one"},
                                    {"none", "no gate is learned, a_l is 1"}}));
  }
  void check(const MixerShape& shape) const;
  std::string formula(const MixerShape& shape) const;

  bool is_gated() const { return gate.word != "none"; }
  double gate_start() const;
  bool operator==(const DeltaAttnResSettings&) const = default;
};

}  // namespace attnres
