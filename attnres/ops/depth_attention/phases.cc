// The operations that fill tensors.
#include "attnres/ops/depth_attention/phases.h"

#include <ATen/ops/add.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"

namespace attnres {

using at::Tensor;

PhaseOneResult allocate_phase_one(const Tensor& like, int64_t num_sources, int64_t num_sites,
                                  bool for_backward) {
  PhaseOneResult result;
  while (std::ssize(result.outputs) < num_sites) result.outputs.push_back(empty_like_rows(like));
  result.max = empty_per_token(like, num_sites);
  result.sum = empty_per_token(like, num_sites);
  if (!for_backward) return result;
  result.scores = empty_per_token(like, num_sites * num_sources);
  result.weights = empty_per_token(like, num_sites * num_sources);
  return result;
}

PhaseTwoResult allocate_phase_two(const Tensor& like, int64_t num_recent, bool has_earlier,
                                  bool has_norm, bool for_backward) {
  PhaseTwoResult result;
  result.x = empty_like_rows(like);
  if (!for_backward) return result;
  result.scores = empty_per_token(like, num_recent);
  result.weights = empty_per_token(like, num_recent);
  if (has_earlier) result.earlier_weight = empty_per_token(like);
  if (has_norm) result.rho = empty_per_token(like);
  return result;
}

PhaseTwoGradients allocate_phase_two_gradients(const PhaseTwoBackwardInputs& inputs) {
  const Tensor& like = inputs.x;
  if (!inputs.earlier_weight.defined()) return {};
  return {.earlier = empty_like_rows(like),
          .sum = empty_per_token(like),
          .scores = empty_per_token(like)};
}

void phase_one_out(const PhaseOneInputs& inputs, const PhaseOneResult& result) {
  constexpr Operation<call_phase_one<phase_one_cpu>> kOperation(
      "attnres::depth_attention_phase_one_out");
  const SourceRows& sources = inputs.sources;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  kOperation->call(sources.values, sources.inverse_rms, sources.num_known, inputs.queries_SD,
                   inputs.eps, result.outputs, result.max, result.sum, given(result.scores),
                   given(result.weights));
}

Tensor phase_one_backward_out(const PhaseOneBackwardInputs& inputs) {
  constexpr Operation<call_phase_one_backward<phase_one_backward_cpu>> kOperation(
      "attnres::depth_attention_phase_one_backward_out");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return kOperation->call(inputs.sources, inputs.inverse_rms, inputs.queries_SD, inputs.scores,
                          inputs.weights, inputs.grad_outputs, given(inputs.grad_sum),
                          given(inputs.other_grad_scores), inputs.targets.gradients,
                          inputs.targets.accumulate);
}

Tensor prepare_norm_gain(const Tensor& gain, const Tensor& rows, bool for_backward) {
  constexpr double kAlmostNothing = 1e-20;
  if (!gain.defined()) return gain;
  const at::ScalarType compute = compute_dtype(rows);
  const Tensor values = for_backward ? gain.detach() : gain;
  const Tensor prepared = values.scalar_type() == compute ? values : values.to(compute);
  return for_backward ? at::add(prepared, kAlmostNothing).contiguous() : prepared.contiguous();
}

void phase_two_out(const PhaseTwoInputs& inputs, const PhaseTwoResult& result) {
  constexpr Operation<call_phase_two<phase_two_cpu>> kOperation(
      "attnres::depth_attention_phase_two_out");
  const SourceRows& recent = inputs.recent;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  kOperation->call(given(inputs.earlier), given(inputs.max), given(inputs.sum), recent.values,
                   recent.inverse_rms, recent.num_known, given(inputs.partial),
                   given(inputs.pending), inputs.queries_SD, inputs.row, inputs.eps,
                   given(inputs.norm_gain_D), inputs.norm_eps, result.x, given(result.scores),
                   given(result.weights), given(result.earlier_weight), given(result.rho));
}

PhaseTwoGradients phase_two_backward_out(const PhaseTwoBackwardInputs& inputs) {
  constexpr Operation<call_phase_two_backward<phase_two_backward_cpu>> kOperation(
      "attnres::depth_attention_phase_two_backward_out");
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto [earlier, sum, scores, query, norm_gain] =
      kOperation->call(inputs.grad_x, given(inputs.grad_partial), inputs.x, inputs.recent,
                       inputs.inverse_rms, inputs.query_D, given(inputs.norm_gain_D),
                       inputs.norm_eps, inputs.scores, inputs.weights, given(inputs.earlier_weight),
                       given(inputs.rho), inputs.targets.gradients, inputs.targets.accumulate);
  return {earlier, sum, scores, query, norm_gain};
}

namespace {

void phase_one_meta(const PhaseOneInputs&, const PhaseOneResult&) {}

Tensor phase_one_backward_meta(const PhaseOneBackwardInputs& inputs) {
  const Tensor& queries = inputs.queries_SD;
  return at::empty_like(queries, queries.options(), at::MemoryFormat::Contiguous);
}

void phase_two_meta(const PhaseTwoInputs&, const PhaseTwoResult&) {}

PhaseTwoGradients phase_two_backward_meta(const PhaseTwoBackwardInputs& inputs) {
  PhaseTwoGradients gradients = allocate_phase_two_gradients(inputs);
  const Tensor &query = inputs.query_D, &gain = inputs.norm_gain_D;
  gradients.query_D = at::empty_like(query, query.options(), at::MemoryFormat::Contiguous);
  if (gain.defined()) gradients.norm_gain_D = at::empty_like(gain);
  return gradients;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "depth_attention_phase_one_out(Tensor[] sources, Tensor(a!)[] inverse_rms, int num_known,"
      " Tensor queries, float eps, Tensor(b!)[] outputs, Tensor(c!) max, Tensor(d!) sum,"
      " Tensor(e!)? scores, Tensor(f!)? weights) -> ()");
  m.def(
      "depth_attention_phase_one_backward_out(Tensor[] sources, Tensor[] inverse_rms,"
      " Tensor queries, Tensor scores, Tensor weights, Tensor[] grad_outputs, Tensor? grad_sum,"
      " Tensor? other_grad_scores, Tensor(a!)[] grad_sources, bool[] accumulate)"
      " -> Tensor grad_queries");
  m.def(
      "depth_attention_phase_two_out(Tensor? earlier, Tensor? max, Tensor? sum,"
      " Tensor(a!)[] recent, Tensor(b!)[] inverse_rms, int num_known, Tensor? partial,"
      " Tensor? pending, Tensor queries, int row, float eps, Tensor? norm_gain, float norm_eps,"
      " Tensor(c!) x, Tensor(d!)? scores, Tensor(e!)? weights, Tensor(f!)? earlier_weight,"
      " Tensor(g!)? rho) -> ()");
  m.def(
      "depth_attention_phase_two_backward_out(Tensor grad_x, Tensor? grad_partial, Tensor x,"
      " Tensor[] recent, Tensor[] inverse_rms, Tensor query,"
      " Tensor? norm_gain, float norm_eps, Tensor scores, Tensor weights, Tensor? earlier_weight,"
      " Tensor? rho, Tensor(a!)[] grad_recent, bool[] accumulate) -> (Tensor grad_earlier,"
      " Tensor grad_sum, Tensor grad_scores, Tensor grad_query, Tensor grad_norm_gain)");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("depth_attention_phase_one_out", &call_phase_one<phase_one_meta>);
  m.impl("depth_attention_phase_one_backward_out",
         &call_phase_one_backward<phase_one_backward_meta>);
  m.impl("depth_attention_phase_two_out", &call_phase_two<phase_two_meta>);
  m.impl("depth_attention_phase_two_backward_out",
         &call_phase_two_backward<phase_two_backward_meta>);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  implement_once_differentiable(
      m, {"depth_attention_phase_one_out", "depth_attention_phase_one_backward_out",
          "depth_attention_phase_two_out", "depth_attention_phase_two_backward_out"});
}

}  // namespace attnres
