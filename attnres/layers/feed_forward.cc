#include "attnres/layers/feed_forward.h"

namespace attnres {

FeedForward::FeedForward(int64_t width, int64_t hidden, const Activation& activation,
                         double init_std, const SublayerNeeds& needs, int site,
                         ParameterRegistry& parameters)
    : hidden_(hidden / parameters.part().size), activation_(activation) {
  const Init inner = Init::normal(init_std * needs.init_gain);
  const Init last = Init::normal(init_std * needs.init_gain * needs.output_init_gain);
  gate_and_up_proj_ = LinearGroup(
      parameters, site, width,
      {{"gate_proj", hidden, inner, Shard::outputs}, {"up_proj", hidden, inner, Shard::outputs}});
  down_proj_ = Linear(parameters, site, hidden, {"down_proj", width, last, Shard::inputs});
}

SublayerOutput FeedForward::forward(const SublayerInput& input, const SequenceContext&) const {
  const std::vector<at::Tensor> gate_and_up = gate_and_up_proj_(input.x);
  return {down_proj_(activation_(gate_and_up[0], gate_and_up[1]))};
}

SublayerCost FeedForward::cost(int64_t /*context*/) const {
  const auto hidden = static_cast<double>(hidden_);
  return {.kept = activation_.kept() * hidden, .widest = hidden};
}

}  // namespace attnres
