#include "attnres/layers/feed_forward.h"

#include <ATen/ops/linear.h>

#include "attnres/ops/swiglu/swiglu.h"

namespace attnres {

FeedForward::FeedForward(int64_t width, int64_t hidden, double init_std, int site,
                         ParameterRegistry& parameters) {
  const Init init = Init::normal(init_std);
  gate_proj_ = parameters.add(site, "gate_proj", ParameterKind::matrix, {hidden, width}, init);
  up_proj_ = parameters.add(site, "up_proj", ParameterKind::matrix, {hidden, width}, init);
  down_proj_ = parameters.add(site, "down_proj", ParameterKind::matrix, {width, hidden}, init);
}

SublayerOutput FeedForward::forward(const SublayerInput& input, const SequenceContext&) const {
  const at::Tensor hidden = swiglu(at::linear(input.x, gate_proj_), at::linear(input.x, up_proj_));
  return {at::linear(hidden, down_proj_)};
}

}  // namespace attnres
