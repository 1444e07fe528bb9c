#include "attnres/depth/depth_scores.h"

#include <ATen/ATen.h>

#include "attnres/ops/tensors.h"

namespace attnres {

at::Tensor depth_scores(at::TensorList sources, const DepthScoring& scoring) {
  const at::ScalarType type = compute_dtype(sources[0]);
  at::Tensor query = scoring.query.to(type);
  if (scoring.key_gain.defined()) query = query * scoring.key_gain.to(type);
  std::vector<at::Tensor> scores;
  for (const at::Tensor& source : sources) {
    const at::Tensor v = source.to(type);
    at::Tensor score = (v * query).unflatten(-1, {scoring.heads, -1}).sum(-1);
    if (scoring.key_gain.defined()) {
      score = score * v.square().mean(-1, /*keepdim=*/true).add(scoring.eps).rsqrt();
    }
    scores.push_back(score);
  }
  return at::stack(scores);
}

at::Tensor weigh_scores(const at::Tensor& scores, bool sigmoid) {
  return sigmoid ? scores.sigmoid() : scores.softmax(0);
}

at::Tensor weighted_sum(at::TensorList sources, const at::Tensor& weights) {
  const bool by_head = weights.dim() > 1;
  at::Tensor sum;
  for (size_t i = 0; i < sources.size(); ++i) {
    at::Tensor v = sources[i], weight = weights[static_cast<int64_t>(i)].to(v.scalar_type());
    if (by_head) {
      v = v.unflatten(-1, {weight.size(-1), -1});
      weight = weight.unsqueeze(-1);
    }
    sum = i == 0 ? at::mul(v, weight) : at::addcmul(sum, v, weight);
  }
  return by_head ? sum.flatten(-2) : sum;
}

}  // namespace attnres
