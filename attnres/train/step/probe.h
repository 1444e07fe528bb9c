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

#include "attnres/model/depth_weights.h"
#include "attnres/model/magnitudes.h"
#include "attnres/model/transformer.h"
#include "attnres/support/json.h"

namespace attnres {

// Windows of validation text that a run looks at.
inline constexpr int64_t kProbeWindows = 4;

struct ProbeReading {
  std::vector<Json> lines;                          // by site, without "step"
  std::optional<DepthWeightSummary> depth_weights;  // of mechanisms that have them
};

// Over all windows of a batch, one at a time, and recomputed if steps are: so that no probe needs
// more memory than a step. Leaves the parameters' gradients cleared.
ProbeReading probe(const Transformer& model, const Batch& batch, bool recompute = false);

// Each row of a batch of windows by itself.
std::vector<Batch> windows_of(const Batch& batch);
// How many of its targets count.
int64_t count_targets(const Batch& batch);

// The same in parts, of processes that have some sites each.
class ProbeObserver : public RunObserver, public RecomputedOutputs {
 public:
  explicit ProbeObserver(const Transformer& stage) : depth_weights_(stage) {}

  void on_read(int site, const ReadTrace& trace) override { depth_weights_.on_read(site, trace); }
  void on_output(int site, const at::Tensor& y, const at::Tensor& running_state) override {
    magnitudes_.on_output(site, y, running_state);
  }
  void on_output_again(int site, const at::Tensor& y) override {
    magnitudes_.on_output_again(site, y);
  }

  // What the sites that it has seen add to a reading, once the loss has run backward, as JSON that
  // processes can send: of `tokens`, of which it has seen `own`, with a loss that was `loss_scale`
  // times the mean of those that count.
  Json part(const ExpertLoads& loads, int64_t tokens, int64_t own, double loss_scale) const;

 private:
  DepthWeightAverage depth_weights_;
  MagnitudeObserver magnitudes_;
};

// The reading of the parts of all sites, in any order. What several have seen of a site, of other
// tokens each, is the mean of theirs.
ProbeReading reading_of(const std::vector<Json>& parts);

}  // namespace attnres
