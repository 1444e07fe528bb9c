#include <ATen/TensorOperators.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include "attnres/ops/depth_attention/depth_attention.h"

namespace attnres {

DepthAttentionResult depth_attention_composed(at::TensorList sources, const at::Tensor& query,
                                              const at::Tensor& key_gain, double eps) {
  const at::ScalarType storage = sources[0].scalar_type();
  const at::ScalarType compute = storage == at::kDouble ? at::kDouble : at::kFloat;
  const at::Tensor values = at::stack(sources).to(compute);
  const at::Tensor folded_query = query.to(compute) * key_gain.to(compute);
  const at::Tensor inverse_rms = at::rsqrt(values.square().mean(-1) + eps);
  const at::Tensor scores = at::matmul(values, folded_query) * inverse_rms;
  const at::Tensor weights = at::softmax(scores, 0);
  return {(weights.unsqueeze(-1) * values).sum(0).to(storage), weights};
}

}  // namespace attnres
