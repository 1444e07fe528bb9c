#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>

#include "attnres/ops/depth_scores/depth_scores.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

Tensor depth_scores_composed(at::TensorList sources, const DepthScoring& scoring) {
  const at::ScalarType type = compute_dtype(sources[0]);
  const bool factorised = scoring.weighing == DepthWeighing::factorised;
  const Tensor query = scoring.query.to(type), q = factorised ? feature_map(query) : query;
  std::vector<Tensor> scores;
  for (const Tensor& source : sources) {
    Tensor key = source.to(type);
    if (scoring.key_gain.defined()) {
      const Tensor mean_square = key.square().mean(-1, /*keepdim=*/true);
      key = scoring.key_gain.to(type) * key * at::rsqrt(mean_square + scoring.eps);
    }
    const Tensor products = q * (factorised ? feature_map(key) : key);
    scores.push_back(products.unflatten(-1, {scoring.heads, -1}).sum(-1));
  }
  return at::stack(scores);
}

Tensor weighted_sum_composed(at::TensorList sources, const Tensor& weights) {
  const Tensor w = weights.to(compute_dtype(sources[0]));
  Tensor sum;
  for (size_t n = 0; n < sources.size(); ++n) {
    const Tensor source = sources[n].to(w.scalar_type());
    const Tensor weight = w.select(0, static_cast<int64_t>(n));
    const Tensor part =
        weight.dim() == 0
            ? source * weight
            : (source.unflatten(-1, {weight.size(-1), -1}) * weight.unsqueeze(-1)).flatten(-2);
    sum = n == 0 ? part : sum + part;
  }
  return sum.to(sources[0].scalar_type());
}

}  // namespace attnres
