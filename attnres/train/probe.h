// A look inside a model in training: one forward and backward over a few validation windows, whose
// figures go to probes.jsonl and whose summary goes to the progress line.
//
//   name            site     value
//   depth_weights   0 .. L   list: mean depth weight of each source (mechanisms that have them)
//   depth_entropy   0 .. L   mean entropy of the depth weights, nats
//   state_rms       0 .. L-1 RMS of the running state after the sublayer (Fig. 5b of the report)
//   output_rms      0 .. L-1 RMS of the sublayer's output
//   gradient_rms    0 .. L-1 RMS of the loss gradient at the sublayer's output (Fig. 5c), with the
//                            loss the mean over the probe's tokens
//   expert_load     sites with experts: list, the share of the tokens that chose each expert
#pragma once

#include <optional>
#include <vector>

#include "attnres/data/evaluation_batches.h"
#include "attnres/model/depth_weights.h"
#include "attnres/model/transformer.h"
#include "attnres/support/json.h"

namespace attnres {

// Windows of validation text that a run looks at.
inline constexpr int64_t kProbeWindows = 4;

struct ProbeReading {
  std::vector<Json> lines;                          // without "step"
  std::optional<DepthWeightSummary> depth_weights;  // of mechanisms that have them
};

// Leaves the parameters' gradients cleared.
ProbeReading probe(const Transformer& model, const Batch& batch);

}  // namespace attnres
