// What a model takes for each token, worked out from its shapes before anything is allocated. What
// is said to be kept is in numbers, which are as wide as the weights.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "attnres/model/transformer.h"

namespace attnres {

// Bytes of a parameter, as weights of these formats are stored: rows that no block fits as f16.
double stored_bytes(const Parameter& parameter, const WeightFormats& formats);

class ModelCost {
 public:
  // The cost of a whole model, or that of each of `tensor` processes that share every layer, for
  // each token of all, on this device. Throws UsageError where these cannot share it equally.
  ModelCost(const ModelConfig& config, int64_t vocab_size, int tensor = 1,
            at::Device device = at::kCPU);

  // The model's, or a process's part of them: shapes without values.
  const ParameterRegistry& parameters() const { return plan_.parameters(); }
  const DepthMixer& mixer() const { return plan_.mixer(); }
  int sublayers() const { return plan_.sublayers(); }

  // Multiply-adds of a forward pass, of all sites or of some: in all linear maps of sublayers and
  // mixer, of experts the chosen ones' (on another device than the CPU all); and between the tokens
  // of a context. In the head.
  double linear_maps(const SiteRange& sites = {}) const;
  double between_tokens(int64_t context, const SiteRange& sites = {}) const;
  double head() const;

  // By a training step, the loss included: the two below, of all sites.
  double kept(bool recompute) const;
  // Of these, what only gradients of maps' weights ask for, so that it is not kept where none is
  // trained: what they read.
  double kept_for_maps() const;
  // By a stage of these sites from its forward to its backward: what autograd keeps of each site
  // (the mixer's sources, mixed and normalised inputs, what the sublayer says), or with
  // recomputation what crosses the cuts; of the output, what the loss needs.
  double kept_until_backward(const SiteRange& sites, bool recompute) const;
  // By its backward beside that: gradients on their way down, and with recomputation what the
  // largest span keeps, which is there again.
  double kept_in_backward(const SiteRange& sites, bool recompute) const;
  // By a pass without gradients: the sources, and one sublayer at work.
  double kept_in_evaluation() const;
  // By the sublayers of these sites alone, their outputs with it.
  double kept_by_sublayers(const SiteRange& sites = {}) const;

  // Read and written forward by the mixer at these sites, as its operations are counted
  // (depth/mixing_cost.h).
  double moved_by_mixer(const SiteRange& sites = {}) const;

 private:
  double most_sources_read(const SiteRange& sites) const;
  double widest(const SiteRange& sites) const;
  double site() const;  // what the mixer keeps of one
  double sublayers_keep(const SiteRange& sites) const;
  int num_sublayers(const SiteRange& sites) const;
  double gathered(int site) const;
  double span(const SiteRange& sites) const;
  std::vector<SiteRange> recomputed_spans(const SiteRange& sites) const;
  SiteRange within(const SiteRange& sites) const;
  bool has_output(const SiteRange& sites) const { return sites.has(sublayers()); }

  bool all_experts_;  // compute every token
  double vocab_, width_;
  double share_;  // of the tokens
  std::unique_ptr<TensorGroup> group_;
  Transformer plan_;
  std::vector<double> sources_;      // before each site, sealed ones, in units of the width
  std::vector<double> linear_maps_;  // by site
  // By the mixer at a site, in units of the width. Measured when it is asked for: that takes memory
  // and time, which a model that is too large from its weights alone should not cost.
  mutable std::optional<double> mixer_keeps_, mixer_moves_;
};

}  // namespace attnres
