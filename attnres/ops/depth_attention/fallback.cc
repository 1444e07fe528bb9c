#include <ATen/TensorOperators.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// [N, ..., D] in the compute type.
Tensor stack_values(at::TensorList sources) {
  return at::stack(sources).to(compute_dtype(sources[0]));
}

Tensor inverse_rms_of(const Tensor& values, double eps) {
  return at::rsqrt(values.square().mean(-1) + eps);
}

}  // namespace

DepthAttentionResult depth_attention_composed(at::TensorList sources, const Tensor& query,
                                              const Tensor& key_gain, double eps) {
  const Tensor values = stack_values(sources);
  const at::ScalarType storage = sources[0].scalar_type(), compute = values.scalar_type();
  const Tensor folded_query = query.to(compute) * key_gain.to(compute);
  const Tensor scores = at::matmul(values, folded_query) * inverse_rms_of(values, eps);
  const Tensor weights = at::softmax(scores, 0);
  return {(weights.unsqueeze(-1) * values).sum(0).to(storage), weights};
}

std::tuple<std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>>
depth_attention_phase_one_composed(at::TensorList sources, const Tensor& queries_SD, double eps) {
  const Tensor values = stack_values(sources);
  // [N, ..., S]
  const Tensor scores =
      at::matmul(values, queries_SD.t()) * inverse_rms_of(values, eps).unsqueeze(-1);
  const Tensor max = scores.amax(0).detach();
  const Tensor weights = at::exp(scores - max);
  const Tensor outputs =
      at::einsum("n...s,n...d->s...d", {weights, values}).to(sources[0].scalar_type());
  return {outputs.unbind(0), max.unbind(-1), weights.sum(0).unbind(-1)};
}

Tensor depth_attention_phase_two_composed(const Tensor& earlier, const Tensor& max,
                                          const Tensor& sum, at::TensorList recent,
                                          const Tensor& query_D, double eps) {
  const Tensor o = earlier.to(query_D.scalar_type());
  if (recent.empty()) return (o / sum.unsqueeze(-1)).to(earlier.scalar_type());
  const Tensor values = stack_values(recent);
  const Tensor scores = at::matmul(values, query_D) * inverse_rms_of(values, eps);
  const Tensor new_max = at::maximum(max, scores.amax(0)).detach();
  const Tensor scale = at::exp(max - new_max), weights = at::exp(scores - new_max);
  const Tensor ell = scale * sum + weights.sum(0);
  const Tensor h = scale.unsqueeze(-1) * o + (weights.unsqueeze(-1) * values).sum(0);
  return (h / ell.unsqueeze(-1)).to(earlier.scalar_type());
}

}  // namespace attnres
