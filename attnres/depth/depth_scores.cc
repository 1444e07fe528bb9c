#include "attnres/depth/depth_scores.h"

#include <ATen/ATen.h>

#include <limits>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

// elu(x) + 1, exact far below zero too.
at::Tensor feature_map(const at::Tensor& x) {
  return x.clamp_max(0).exp() + x.relu();
}

at::Tensor factorised_scores(at::TensorList sources, const DepthScoring& scoring) {
  const at::ScalarType type = compute_dtype(sources[0]);
  const at::Tensor features = feature_map(scoring.query.to(type));
  std::vector<at::Tensor> scores;
  for (const at::Tensor& source : sources) {
    at::Tensor key = source.to(type);
    if (scoring.key_gain.defined()) {
      key = key * key.square().mean(-1, /*keepdim=*/true).add(scoring.eps).rsqrt() *
            scoring.key_gain.to(type);
    }
    scores.push_back((features * feature_map(key)).unflatten(-1, {scoring.heads, -1}).sum(-1));
  }
  return at::stack(scores);
}

}  // namespace

at::Tensor depth_scores(at::TensorList sources, const DepthScoring& scoring) {
  if (scoring.weighing == DepthWeighing::factorised) return factorised_scores(sources, scoring);
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

at::Tensor weigh_scores(const at::Tensor& scores, DepthWeighing weighing) {
  switch (weighing) {
    case DepthWeighing::softmax:
      return scores.softmax(0);
    case DepthWeighing::sigmoid:
      return scores.sigmoid();
    case DepthWeighing::factorised:
      return scores / scores.sum(0);
  }
  fail("depth weights: unknown weighing {}", static_cast<int>(weighing));
}

double score_of_nothing(DepthWeighing weighing) {
  return weighing == DepthWeighing::factorised ? 0 : -std::numeric_limits<double>::infinity();
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
