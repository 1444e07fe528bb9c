#include <ATen/TensorOperators.h>
#include <ATen/ops/add.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// Phase 1 of S sites over values [N, ..., D].
struct PhaseOneTerms {
  Tensor scores, weights;    // s and e^{s - m}, [S, N, ...]
  Tensor max, sum, outputs;  // m and ell [S, ...], o [S, ..., D]
};

PhaseOneTerms phase_one_terms(const Tensor& values, const Tensor& inverse_rms,
                              const Tensor& queries_SD) {
  PhaseOneTerms of;
  of.scores = at::matmul(values, queries_SD.t()).movedim(-1, 0) * inverse_rms;
  of.max = of.scores.amax(1).detach();
  of.weights = at::exp(of.scores - of.max.unsqueeze(1));
  of.sum = of.weights.sum(1);
  of.outputs = at::einsum("sn...,n...d->s...d", {of.weights, values});
  return of;
}

// kappa [...] and w_k [K, ...] of phase 2 after phase 1.
struct MergedWeights {
  Tensor earlier, recent;
};

// `scores` [K, ...] are undefined if K = 0.
MergedWeights merge_weights(const Tensor& max, const Tensor& sum, const Tensor& scores) {
  if (!scores.defined()) return {at::reciprocal(sum), {}};
  const Tensor new_max = at::maximum(max, scores.amax(0)).detach();
  const Tensor scale = at::exp(max - new_max), weights = at::exp(scores - new_max);
  const Tensor ell = scale * sum + weights.sum(0);
  return {scale / ell, weights / ell};
}

void write_inverse_rms(const SourceRows& sources, const Tensor& inverse_rms) {
  for (int64_t n = sources.num_known; n < std::ssize(sources.inverse_rms); ++n) {
    sources.inverse_rms[n].copy_(inverse_rms[n]);
  }
}

void add_to_targets(const Tensor& gradients, const GradientTargets& targets) {
  for (size_t n = 0; n < targets.gradients.size(); ++n) {
    const Tensor &target = targets.gradients[n], part = gradients[static_cast<int64_t>(n)];
    if (target.numel() == 0) continue;
    targets.accumulate[n] ? target.add_(part) : target.copy_(part);
  }
}

}  // namespace

DepthAttentionResult depth_attention_composed(at::TensorList sources, const Tensor& query,
                                              const Tensor& key_gain, double eps) {
  note_composed("depth attention", sources[0]);
  const Tensor values = stack_values(sources);
  const at::ScalarType storage = sources[0].scalar_type(), compute = values.scalar_type();
  const Tensor folded_query = query.to(compute) * key_gain.to(compute);
  const Tensor scores = at::matmul(values, folded_query) * inverse_rms_of(values, eps);
  const Tensor weights = at::softmax(scores, 0);
  return {(weights.unsqueeze(-1) * values).sum(0).to(storage), weights};
}

std::tuple<std::vector<Tensor>, std::vector<Tensor>, std::vector<Tensor>>
depth_attention_phase_one_composed(at::TensorList sources, const Tensor& queries_SD, double eps) {
  note_composed("depth attention", sources[0]);
  const Tensor values = stack_values(sources);
  const PhaseOneTerms of = phase_one_terms(values, inverse_rms_of(values, eps), queries_SD);
  return {of.outputs.to(sources[0].scalar_type()).unbind(), of.max.unbind(), of.sum.unbind()};
}

Tensor depth_attention_phase_two_composed(const Tensor& earlier, const Tensor& max,
                                          const Tensor& sum, at::TensorList recent,
                                          const Tensor& query_D, double eps) {
  Tensor o;
  if (earlier.defined()) o = earlier.to(query_D.scalar_type());
  if (recent.empty()) return o / sum.unsqueeze(-1);
  const Tensor values = stack_values(recent);
  const Tensor scores = at::matmul(values, query_D) * inverse_rms_of(values, eps);
  if (!o.defined()) return (at::softmax(scores, 0).unsqueeze(-1) * values).sum(0);
  const MergedWeights of = merge_weights(max, sum, scores);
  return of.earlier.unsqueeze(-1) * o + (of.recent.unsqueeze(-1) * values).sum(0);
}

void phase_one_fallback(const PhaseOneInputs& inputs, const PhaseOneResult& result) {
  note_composed("depth attention", inputs.sources.values[0]);
  const Tensor values = stack_values(inputs.sources.values);
  const Tensor inverse_rms = inverse_rms_of(values, inputs.eps);
  write_inverse_rms(inputs.sources, inverse_rms);
  const PhaseOneTerms of = phase_one_terms(values, inverse_rms, inputs.queries_SD);
  for (size_t s = 0; s < result.outputs.size(); ++s) {
    result.outputs[s].copy_(of.outputs[static_cast<int64_t>(s)]);
  }
  result.max.copy_(of.max);
  result.sum.copy_(of.sum);
  if (!result.scores.defined()) return;
  result.scores.copy_(of.scores.flatten(0, 1));
  result.weights.copy_(of.weights.flatten(0, 1));
}

// With ds = w (do . v - c): dq = sum ds r v, dv = sum_s w do + ds r q - ds s r^2 v / D.
Tensor phase_one_backward_fallback(const PhaseOneBackwardInputs& inputs) {
  const Tensor values = stack_values(inputs.sources);  // [N, ..., D]
  const Tensor grads = stack_values(inputs.grad_outputs);
  const Tensor inverse_rms = at::stack(inputs.inverse_rms);
  const int64_t N = values.size(0), S = grads.size(0), D = values.size(-1);
  const auto of_sites = [&](const Tensor& rows) { return rows.unflatten(0, {S, N}); };
  const Tensor scores = of_sites(inputs.scores), weights = of_sites(inputs.weights);

  const Tensor grad_weights = at::einsum("s...d,n...d->sn...", {grads, values});
  Tensor c;  // [S, ...]
  if (inputs.grad_sum.defined()) {
    c = -inputs.grad_sum;
  } else {
    c = (weights * grad_weights).sum(1);
    if (inputs.other_grad_scores.defined()) c = c + inputs.other_grad_scores;
    c = c / weights.sum(1);
  }
  const Tensor grad_scores = weights * (grad_weights - c.unsqueeze(1));
  const Tensor along_query = grad_scores * inverse_rms;  // [S, N, ...]
  const Tensor along_value = (grad_scores * scores).sum(0) * inverse_rms.square() / D;
  add_to_targets(at::einsum("sn...,s...d->n...d", {weights, grads}) +
                     at::einsum("sn...,sd->n...d", {along_query, inputs.queries_SD}) -
                     along_value.unsqueeze(-1) * values,
                 inputs.targets);
  const int64_t rows = N * tokens_of(inputs.sources[0]);
  return at::matmul(along_query.reshape({S, rows}), values.reshape({rows, D}));
}

void phase_two_fallback(const PhaseTwoInputs& inputs, const PhaseTwoResult& result) {
  const at::TensorList recent = inputs.recent.values;
  const at::ScalarType compute = compute_dtype(result.x);
  if (inputs.pending.defined()) recent.back().copy_(at::add(inputs.partial, inputs.pending));
  Tensor scores, values;
  if (!recent.empty()) {
    values = stack_values(recent);
    const Tensor inverse_rms = inverse_rms_of(values, inputs.eps);
    write_inverse_rms(inputs.recent, inverse_rms);
    scores = at::matmul(values, inputs.queries_SD[inputs.row]) * inverse_rms;
  }
  MergedWeights weights;
  Tensor h;
  if (inputs.earlier.defined()) {
    weights = merge_weights(inputs.max[inputs.row], inputs.sum[inputs.row], scores);
    h = weights.earlier.unsqueeze(-1) * inputs.earlier.to(compute);
  } else {
    weights.recent = at::softmax(scores, 0);
  }
  if (scores.defined()) {
    const Tensor sum = (weights.recent.unsqueeze(-1) * values).sum(0);
    h = h.defined() ? h + sum : sum;
    if (result.scores.defined()) result.scores.copy_(scores);
    if (result.weights.defined()) result.weights.copy_(weights.recent);
  }
  if (result.earlier_weight.defined()) result.earlier_weight.copy_(weights.earlier);
  if (!inputs.norm_gain_D.defined()) {
    result.x.copy_(h);
    return;
  }
  const Tensor rho = inverse_rms_of(h, inputs.norm_eps);
  result.x.copy_(inputs.norm_gain_D * (h * rho.unsqueeze(-1)));
  if (result.rho.defined()) result.rho.copy_(rho);
}

// phase_two-inl.h has the formulas.
PhaseTwoGradients phase_two_backward_fallback(const PhaseTwoBackwardInputs& inputs) {
  const at::ScalarType compute = compute_dtype(inputs.x);
  const Tensor grad_x = inputs.grad_x.to(compute), x = inputs.x.to(compute);
  const Tensor& gain = inputs.norm_gain_D;
  const bool has_earlier = inputs.earlier_weight.defined();
  const int64_t D = x.size(-1);
  PhaseTwoGradients gradients;
  Tensor grad_h = grad_x, c;  // c [...]
  if (gain.defined()) {
    const Tensor normalized = x / gain;
    const Tensor u = gain * grad_x, along = (u * normalized).sum(-1);
    grad_h = inputs.rho.unsqueeze(-1) * (u - normalized * (along / D).unsqueeze(-1));
    c = inputs.norm_eps * inputs.rho.square() * along;
    gradients.norm_gain_D = (grad_x * normalized).reshape({tokens_of(x), D}).sum(0);
  } else {
    c = (grad_x * x).sum(-1);
  }
  gradients.query_D = at::zeros_like(inputs.query_D);
  Tensor grad_scores = at::zeros_like(c);
  if (!inputs.recent.empty()) {
    const Tensor values = stack_values(inputs.recent), inverse_rms = at::stack(inputs.inverse_rms);
    const Tensor grad_weights = (grad_h * values).sum(-1);
    if (!has_earlier) c = (inputs.weights * grad_weights).sum(0);
    const Tensor by_score = inputs.weights * (grad_weights - c);  // [K, ...]
    const Tensor along_query = by_score * inverse_rms;
    const Tensor along_value = by_score * inputs.scores * inverse_rms.square() / D;
    Tensor grad_values = inputs.weights.unsqueeze(-1) * grad_h +
                         along_query.unsqueeze(-1) * inputs.query_D -
                         along_value.unsqueeze(-1) * values;
    if (inputs.grad_partial.defined()) grad_values[-1].add_(inputs.grad_partial);
    add_to_targets(grad_values, inputs.targets);
    const int64_t rows = along_query.numel();
    gradients.query_D = at::matmul(along_query.reshape({rows}), values.reshape({rows, D}));
    grad_scores = by_score.sum(0);
  }
  if (has_earlier) {
    const Tensor kappa = inputs.earlier_weight;
    gradients.earlier = (kappa.unsqueeze(-1) * grad_h).to(inputs.x.scalar_type());
    gradients.sum = -kappa * c;
    gradients.scores = grad_scores;
  }
  return gradients;
}

TORCH_LIBRARY_IMPL(attnres, CompositeExplicitAutograd, m) {
  m.impl("depth_attention_phase_one_out", &call_phase_one<phase_one_fallback>);
  m.impl("depth_attention_phase_one_backward_out",
         &call_phase_one_backward<phase_one_backward_fallback>);
  m.impl("depth_attention_phase_two_out", &call_phase_two<phase_two_fallback>);
  m.impl("depth_attention_phase_two_backward_out",
         &call_phase_two_backward<phase_two_backward_fallback>);
}

}  // namespace attnres
