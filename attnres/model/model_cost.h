// What a model takes for each token, worked out from its shapes before anything is allocated. What
// is said to be kept is in numbers, which are as wide as the weights.
#pragma once

#include <cstdint>
#include <optional>

#include "attnres/model/transformer.h"

namespace attnres {

class ModelCost {
 public:
  ModelCost(const ModelConfig& config, int64_t vocab_size);

  // The model's, shapes without values.
  const ParameterRegistry& parameters() const { return plan_.parameters(); }

  // Multiply-adds of a forward pass: in all linear maps of sublayers and mixer, of experts the
  // chosen ones'; in the head; and between the tokens of a context.
  double linear_maps() const;
  double head() const;
  double between_tokens(int64_t context) const;

  // By a training step, the loss included: what autograd keeps of each site (the mixer's sources,
  // mixed and normalised inputs, what the sublayer says), or with recomputation what crosses the
  // cuts and the largest span; gradients on their way down.
  double kept(bool recompute) const;
  // By a pass without gradients: the sources, and one sublayer at work.
  double kept_in_evaluation() const;
  // Of all sites together.
  double kept_at_sites() const;

 private:
  double sources(int site) const;
  double most_sources_read() const;
  double widest() const;
  double site() const;
  double span(int begin, int end) const;

  double vocab_, width_;
  Transformer plan_;
  // By the mixer at a site, in units of the width. Measured when it is asked for: that takes memory
  // and time, which a model that is too large from its weights alone should not cost.
  mutable std::optional<double> mixer_keeps_;
};

}  // namespace attnres
