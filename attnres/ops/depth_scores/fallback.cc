#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/tensordot.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/depth_scores/depth_scores.h"

namespace attnres {

using at::Tensor;

namespace {

Tensor sum_of_heads(const Tensor& products, int64_t heads) {
  return products.unflatten(-1, {heads, -1}).sum(-1);
}

}  // namespace

Tensor depth_scores_composed(at::TensorList sources, const DepthScoring& scoring) {
  note_composed("depth scores", sources[0]);
  const Tensor v = stack_values(sources), query = scoring.query.to(v.scalar_type());
  const bool has_gain = scoring.key_gain.defined();
  if (scoring.weighing == DepthWeighing::factorised) {
    const Tensor key = has_gain ? scoring.key_gain.to(v.scalar_type()) * v *
                                      inverse_rms_of(v, scoring.eps).unsqueeze(-1)
                                : v;
    return sum_of_heads(feature_map(query) * feature_map(key), scoring.heads);
  }
  if (!has_gain) return sum_of_heads(query * v, scoring.heads);
  const Tensor folded = query * scoring.key_gain.to(v.scalar_type());
  return sum_of_heads(folded * v, scoring.heads) * inverse_rms_of(v, scoring.eps).unsqueeze(-1);
}

Tensor weighted_sum_composed(at::TensorList sources, const Tensor& weights) {
  note_composed("weighted sum", sources[0]);
  const Tensor v = stack_values(sources), w = weights.to(v.scalar_type());
  const Tensor sum = w.dim() == 1
                         ? at::tensordot(w, v, {0}, {0})
                         : (v.unflatten(-1, {w.size(-1), -1}) * w.unsqueeze(-1)).sum(0).flatten(-2);
  return sum.to(sources[0].scalar_type());
}

}  // namespace attnres
