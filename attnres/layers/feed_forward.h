// Gated feed-forward (Shazeer, arXiv 2002.05202): y = down(activation(gate x, up x)). No biases.
#pragma once

#include <cstdint>

#include "attnres/layers/activation.h"
#include "attnres/layers/layer_place.h"
#include "attnres/layers/linear.h"
#include "attnres/layers/sublayer.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

inline constexpr const char* kDense = "dense";

class FeedForward : public Sublayer {
 public:
  // Adds gate_proj and up_proj [hidden, D] and down_proj [D, hidden] at this site.
  FeedForward(int64_t hidden, const Activation& activation, const LayerPlace& place,
              ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const override;
  SublayerCost cost(int64_t context) const override;

 private:
  int64_t hidden_;
  Activation activation_;
  LinearGroup gate_and_up_proj_;
  Linear down_proj_;
};

}  // namespace attnres
