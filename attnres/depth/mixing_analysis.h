// What only analysis asks of a mixer: to see what a site read, and reads that are linear. Whoever
// analyses a run points DepthState::analysis here; nobody else pays for it.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "attnres/depth/depth_mixer.h"

namespace attnres {

// What a read saw. Without gradients, unless weights are held.
struct ReadTrace {
  at::Tensor weights;                // [N, T] depth weights; undefined where there are none
  std::vector<std::string> sources;  // whose weights they are, N names
  at::Tensor mixed;                  // [T, D] the mixed input, before its norm
  // Mixed inputs that an attention reads in other streams, by their names; `mixed` is the first.
  std::vector<std::pair<std::string, at::Tensor>> other_streams;
};

struct MixingAnalysis {
  // Mixing weights and norm statistics count as constants, so that everything read is linear in
  // the embedding and the outputs written, to autograd: of depth mixing matrices.
  bool hold_weights = false;
  // The name of a source, as in ReadTrace::sources, that gets no weight at any site that has
  // another one: the others' weights add up to 1 without it. Mixers that show no weights, or weigh
  // every source by itself, do not look at it.
  std::string dropped_source = {};
  ReadTrace read = {};  // of the site that read last
};

// For mixers. The last three do nothing where nobody looks.

bool holds_weights(const DepthState& state);
bool drops_source(const DepthState& state);

// Scores [N, ...] of N >= 2 sources with these names, with `nothing`, the score of no weight, for
// the one that this state drops.
at::Tensor without_dropped(const DepthState& state, const at::Tensor& scores,
                           const std::vector<std::string>& sources, double nothing);

// A mixing weight or statistic as this state uses it: a constant to autograd where it holds them.
at::Tensor held(const DepthState& state, const at::Tensor& weight);

// RMSNorm with this gain; its statistics are held where the state's are.
at::Tensor normalize(const DepthState& state, const at::Tensor& x, const at::Tensor& gain,
                     double eps);

// Begins the trace of what the site at work reads.
void show_mixed(const DepthState& state, const at::Tensor& mixed_TD);
// The same of another stream that the site's attention reads.
void show_stream(const DepthState& state, const std::string& name, const at::Tensor& mixed_TD);
// The depth weights [N, T] of a read, and the names of its N sources.
void show_weights(const DepthState& state, const at::Tensor& weights_NT,
                  std::vector<std::string> sources);

}  // namespace attnres
