// A sublayer whose output is normalised: y = RMSNorm(f(x)), as in Gemma 3, beside the norm before
// it, which is the mixer's.
#pragma once

#include <memory>
#include <vector>

#include "attnres/layers/layer_place.h"
#include "attnres/layers/sublayer.h"
#include "attnres/parameters/parameters.h"

namespace attnres {

class NormedOutput : public Sublayer {
 public:
  // Adds output_norm [D] at this site.
  NormedOutput(std::unique_ptr<Sublayer> sublayer, const LayerPlace& place,
               ParameterRegistry& parameters);

  SublayerOutput forward(const SublayerInput& input, const SequenceContext& context) const override;
  SublayerCost cost(int64_t context) const override;
  std::vector<KeptTensor> kept() const override { return sublayer_->kept(); }

 private:
  std::unique_ptr<Sublayer> sublayer_;
  int64_t width_;
  double norm_eps_;
  at::Tensor gain_;
};

}  // namespace attnres
