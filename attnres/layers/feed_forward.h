// SwiGLU feed-forward (Shazeer, arXiv 2002.05202): y = down(silu(gate x) * (up x)). No biases.
#pragma once

#include <cstdint>

#include "attnres/layers/sublayer.h"
#include "attnres/support/parameters.h"

namespace attnres {

class FeedForward : public Sublayer {
 public:
  // Adds gate_proj and up_proj [hidden, width] and down_proj [width, hidden] at this site.
  FeedForward(int64_t width, int64_t hidden, double init_std, const SublayerNeeds& needs, int site,
              ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext&) const override;

 private:
  at::Tensor gate_proj_, up_proj_, down_proj_;
};

}  // namespace attnres
