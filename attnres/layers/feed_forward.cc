#include "attnres/layers/feed_forward.h"

namespace attnres {

FeedForward::FeedForward(int64_t hidden, const Activation& activation, const LayerPlace& place,
                         ParameterRegistry& parameters)
    : hidden_(hidden / parameters.part().size), activation_(activation) {
  gate_and_up_proj_ = LinearGroup(parameters, place.site, place.width,
                                  {{"gate_proj", hidden, place.inner_init(), Shard::outputs},
                                   {"up_proj", hidden, place.inner_init(), Shard::outputs}});
  down_proj_ = Linear(parameters, place.site, hidden,
                      {"down_proj", place.width, place.last_init(), Shard::inputs});
}

SublayerOutput FeedForward::forward(const SublayerInput& input, const SequenceContext&) const {
  const std::vector<at::Tensor> gate_and_up = gate_and_up_proj_(input.x);
  return {down_proj_(activation_(gate_and_up[0], gate_and_up[1]))};
}

SublayerCost FeedForward::cost(int64_t /*context*/) const {
  const auto hidden = static_cast<double>(hidden_);
  return {.kept = activation_.kept() * hidden, .for_maps = hidden, .widest = hidden};
}

}  // namespace attnres
