#include "attnres/layers/normed_output.h"

#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {

NormedOutput::NormedOutput(std::unique_ptr<Sublayer> sublayer, const LayerPlace& place,
                           ParameterRegistry& parameters)
    : sublayer_(std::move(sublayer)),
      width_(place.width),
      norm_eps_(place.norm_eps),
      gain_(parameters.add(place.site, "output_norm", ParameterKind::norm_gain, {place.width},
                           Init::ones())) {}

SublayerOutput NormedOutput::forward(const SublayerInput& input,
                                     const SequenceContext& context) const {
  SublayerOutput output = sublayer_->forward(input, context);
  output.y = rms_norm(output.y, gain_, norm_eps_);
  return output;
}

SublayerCost NormedOutput::cost(int64_t context) const {
  SublayerCost cost = sublayer_->cost(context);
  cost.kept += static_cast<double>(width_);  // what is normalised
  return cost;
}

}  // namespace attnres
