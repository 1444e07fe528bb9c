#include "attnres/layers/feed_forward.h"

#include <ATen/ops/linear.h>

namespace attnres {

FeedForward::FeedForward(int64_t width, int64_t hidden, const Activation& activation,
                         double init_std, const SublayerNeeds& needs, int site,
                         ParameterRegistry& parameters)
    : activation_(activation) {
  const auto add = [&](const char* role, int64_t out, int64_t in, double gain) {
    return parameters.add(site, role, ParameterKind::matrix, {out, in},
                          Init::normal(init_std * gain));
  };
  gate_proj_ = add("gate_proj", hidden, width, needs.init_gain);
  up_proj_ = add("up_proj", hidden, width, needs.init_gain);
  down_proj_ = add("down_proj", width, hidden, needs.init_gain * needs.output_init_gain);
}

SublayerOutput FeedForward::forward(const SublayerInput& input, const SequenceContext&) const {
  const at::Tensor hidden =
      activation_(at::linear(input.x, gate_proj_), at::linear(input.x, up_proj_));
  return {at::linear(hidden, down_proj_)};
}

}  // namespace attnres
