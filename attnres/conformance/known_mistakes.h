// Block Attention Residuals with a mistake, in tensor operations written from the equations: what
// Block Attention Residuals with a mistake, in tensor operations written from the equations: what
// implementations got wrong, each of them seen in a public one, and what its settings score_scale,
// block_summary and value_query make easy to get wrong. Beside these settings the mechanism is the
// plain one, Full (blocks of one) or Block, none of its ablation arms; or it is Delta Attention
// Residuals, with mistakes of its own (delta_mistakes.h).
#pragma once

#include <span>
#include <string_view>
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
  early_blocks,               // blocks end a Transformer layer early: the first has S - 2 sublayers
  scaled_scores,              // scores / sqrt(d)
  l2_norm,                    // keys v / |v|
  scaled_blocks_only,         // / sqrt(d) for finished blocks, not for the partial sum
  scaled_partial_only,        // the other way round
  short_block_dropped,        // the output does not read a short last block
  output_is_last_output,      // h_L = y_{L-1}
  output_is_residual,         // h_L = h_{L-1} + y_{L-1}
  output_is_sum,              // h_L = the sum of all sources
  output_is_last_partial,     // h_L = the sum of the last block
  detached_blocks,            // no gradient through finished blocks
  folded_query_rounded,       // bfloat16(w * g)
  folded_factors_rounded,     // bfloat16(bfloat16(w) * bfloat16(g))
  values_normalized,          // h = sum alpha RMS(v)
  values_are_keys,            // h = sum alpha g * RMS(v)
  prefix_sum_for_mixture,     // h_l = the newest block's sum so far: the running prefix
  stream_for_mixture,         // h_l = v_0 + .. + v_l, the residual stream
  cumulative_blocks,          // the partial sum is never reset: b_n = y_0 + .. + y_{n S - 1}
  cumulative_with_embedding,  // the same, begun with the embedding
  cumulative_finished_blocks,  // b_n = b_{n-1} + the sum of block n; the partial sum is as it is
  recursive_blocks,            // b_n = x - b_{n-1}, x the residual stream at the block's end
  recursive_partial_too,       // the same, and the partial sum is x - b_n
  last_slot_overwritten,       // mixtures are written where the last finished block lies
  newest_block_only,           // a finished block takes the place of the one before it
  embedding_slot_overwritten,  // the first finished block takes the place of the embedding
  embedding_summed_in_place,   // b_0 becomes v_0 plus the first block's outputs
  scale_left_out,              // score_scale: c = 1
  scale_not_exponential,       // learned: c = s_l, not exp(s_l)
  summary_left_out,            // block_summary rms: finished blocks are sums of outputs
  rms_of_sum,                  // a finished block is RMS of the sum of its outputs
  partial_sum_normed,          // the newest block's sum is one of RMS too
  value_query_left_out,        // value_query: values read what queries read
  mixtures_swapped,            // values read w's mixture, queries and keys that of w'
  open_block_left_out,         // of Delta: the partial sum is no source
  block_seen_late,             // of Delta: nor is block n at the first sublayer of block n + 1
  released_delta_blocks,       // of Delta: these two, and recursive_blocks
  stream_replaced,             // of Delta: h = the mixture
  stream_scaled_by_gate,       // of Delta: h = (1 - a) r + a times the mixture
  random_queries,              // queries that do not start at zero
  decay_read_whole,            // not of mixers: decay_vectors.h
};

struct KnownMistake {
  Mistake mistake;
  std::string_view name;  // "scaled_scores"
  std::string_view text;  // what is wrong, and what is right
};

// Those of the plain mechanism that show in what a mixer gives.
std::span<const KnownMistake> known_mistakes();
// Those, and the ones that these settings bring, or those of Delta Attention Residuals; of a mixing
// that has_known_mistakes.
std::vector<KnownMistake> known_mistakes_of(const DepthMixing& mixing);
// Shows in what queries start at.
const KnownMistake& random_queries();

// Whether it is the plain mechanism, but for the settings above, or Delta Attention Residuals.
bool has_known_mistakes(const DepthMixing& mixing, const MixerShape& shape);

// Makes mixers of these, with their own parameters. Mistake::none is the mechanism.
MixerFactory mistaken_mixer(Mistake mistake);

}  // namespace attnres
