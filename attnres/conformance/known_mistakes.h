// Block Attention Residuals with a mistake, in tensor operations written from the equations: what
// implementations got wrong, each of them seen in a public one. Of the plain mechanism, Full
// (blocks of one) or Block, not of its ablation arms.
#pragma once

#include <string>
#include <vector>

#include "attnres/conformance/test_vectors.h"

namespace attnres {

enum class Mistake {
  none,
  embedding_in_first_block,  // b_1 begins with the embedding, which is b_0 too
  embedding_as_two_sources,  // b_0 stands in the list of sources twice
  zero_partial_sum,          // a source of zeros at a block's first sublayer, but the first of all
  zero_partial_sum_at_site_0,  // also there, with a zero query
  block_size_in_layers,        // blocks of S Transformer layers, 2 S sublayers
  scaled_scores,               // scores / sqrt(d)
  l2_norm,                     // keys v / |v|
  scaled_blocks_only,          // / sqrt(d) for finished blocks, not for the partial sum
  scaled_partial_only,         // the other way round
  short_block_dropped,         // the output does not read a short last block
  output_is_last_output,       // h_L = y_{L-1}
  output_is_residual,          // h_L = h_{L-1} + y_{L-1}
  output_is_sum,               // h_L = the sum of all sources
  output_is_last_partial,      // h_L = the sum of the last block
  detached_blocks,             // no gradient through finished blocks
  folded_query_rounded,        // bfloat16(w * g)
  folded_factors_rounded,      // bfloat16(bfloat16(w) * bfloat16(g))
  values_normalized,           // h = sum alpha RMS(v)
  values_are_keys,             // h = sum alpha g * RMS(v)
};

struct KnownMistake {
  Mistake mistake;
  std::string name;  // "scaled_scores"
  std::string text;  // what is wrong, and what is right
};

const std::vector<KnownMistake>& known_mistakes();

// Whether it is the plain mechanism.
bool has_known_mistakes(const DepthMixing& mixing, const MixerShape& shape);

// Makes mixers of plain mechanisms, with their own parameters. Mistake::none is the mechanism.
MixerFactory mistaken_mixer(Mistake mistake);

}  // namespace attnres
