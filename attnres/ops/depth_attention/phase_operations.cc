// Both phases as operations of the dispatcher, whose results are new tensors and whose gradients
// are ordinary ones: for PyTorch's modules and compilers. The model's schedule (two_phase.h) adds
// the gradients of a source in one slot instead.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/needed_gradients.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;

// o, m, ell, and for the backward the scores, the weights and the sources' reciprocal RMS.
using PhaseOne = std::tuple<Tensors, Tensor, Tensor, Tensor, Tensor, Tensors>;
using PhaseOneFunction = PhaseOne(at::TensorList sources, const Tensor& queries, double eps,
                                  bool for_backward);
// Of the sources that `source_needed` names, in order; of the queries.
using PhaseOneGradients = std::tuple<Tensors, Tensor>;
using PhaseOneBackward = PhaseOneGradients(at::TensorList grad_outputs, const Tensor& grad_sum,
                                           at::TensorList sources, const Tensor& queries,
                                           const Tensor& scores, const Tensor& weights,
                                           at::TensorList inverse_rms,
                                           c10::List<bool> source_needed);

// h, and for the backward the scores, the weights, kappa and the sources' reciprocal RMS.
using PhaseTwo = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensors>;
using PhaseTwoFunction = PhaseTwo(const Tensor& earlier, const Tensor& max, const Tensor& sum,
                                  at::TensorList recent, const Tensor& query, double eps,
                                  bool for_backward);
// Of o, of ell, of the recent sources that are needed, of the query.
using PhaseTwoGradientList = std::tuple<Tensor, Tensor, Tensors, Tensor>;
using PhaseTwoBackward = PhaseTwoGradientList(const Tensor& grad_output, const Tensor& output,
                                              at::TensorList recent, const Tensor& query,
                                              const Tensor& scores, const Tensor& weights,
                                              const Tensor& earlier_weight,
                                              at::TensorList inverse_rms,
                                              c10::List<bool> recent_needed);

template <class Function>
c10::TypedOperatorHandle<Function> find_operation(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Function>();
}
const auto& phase_one_operation() {
  static const auto handle =
      find_operation<PhaseOneFunction>("attnres::depth_attention_phase_one_fused");
  return handle;
}
const auto& phase_one_backward_operation() {
  static const auto handle =
      find_operation<PhaseOneBackward>("attnres::depth_attention_phase_one_fused_backward");
  return handle;
}
const auto& phase_two_operation() {
  static const auto handle =
      find_operation<PhaseTwoFunction>("attnres::depth_attention_phase_two_fused");
  return handle;
}
const auto& phase_two_backward_operation() {
  static const auto handle =
      find_operation<PhaseTwoBackward>("attnres::depth_attention_phase_two_fused_backward");
  return handle;
}

std::vector<GradientTarget> targets_of(const Tensors& gradients, const c10::List<bool>& needed) {
  std::vector<GradientTarget> targets(needed.size());
  for (size_t n = 0, next = 0; n < needed.size(); ++n) {
    if (needed[n]) targets[n].gradient = gradients[next++];
  }
  return targets;
}

Tensors allocate_inverse_rms(at::TensorList sources, bool for_backward) {
  Tensors inverse_rms;
  for (const Tensor& source : sources) {
    if (for_backward) inverse_rms.push_back(empty_per_token(source));
  }
  return inverse_rms;
}

std::vector<InverseRms> unknown(const Tensors& inverse_rms, size_t count) {
  std::vector<InverseRms> all(count);
  for (size_t n = 0; n < inverse_rms.size(); ++n) all[n].values = inverse_rms[n];
  return all;
}

// ---- Phase 1 ----

PhaseOne phase_one_meta(at::TensorList sources, const Tensor& queries, double /*eps*/,
                        bool for_backward) {
  PhaseOneResult result =
      allocate_phase_one(sources[0], std::ssize(sources), queries.size(0), for_backward);
  return {std::move(result.outputs),
          result.max,
          result.sum,
          result.scores,
          result.weights,
          allocate_inverse_rms(sources, for_backward)};
}

PhaseOne phase_one_cpu(at::TensorList sources, const Tensor& queries, double eps,
                       bool for_backward) {
  PhaseOne all = phase_one_meta(sources, queries, eps, for_backward);
  const auto& [outputs, max, sum, scores, weights, inverse_rms] = all;
  phase_one_forward(sources, unknown(inverse_rms, sources.size()), queries.contiguous(), eps,
                    {outputs, max, sum, scores, weights});
  return all;
}

PhaseOneGradients phase_one_backward_meta(at::TensorList, const Tensor&, at::TensorList sources,
                                          const Tensor& queries, const Tensor&, const Tensor&,
                                          at::TensorList, c10::List<bool> source_needed) {
  return {allocate_gradients(sources, source_needed),
          at::empty_like(queries, queries.options(), at::MemoryFormat::Contiguous)};
}

PhaseOneGradients phase_one_backward_cpu(at::TensorList grad_outputs, const Tensor& grad_sum,
                                         at::TensorList sources, const Tensor& queries,
                                         const Tensor& scores, const Tensor& weights,
                                         at::TensorList inverse_rms,
                                         c10::List<bool> source_needed) {
  const Tensors gradients = allocate_gradients(sources, source_needed);
  const Tensor grad_queries =
      phase_one_backward(sources, inverse_rms, queries.contiguous(), scores, weights, grad_outputs,
                         {.grad_sum = grad_sum}, targets_of(gradients, source_needed));
  return {gradients, grad_queries};
}

class PhaseOneAutograd : public torch::autograd::Function<PhaseOneAutograd> {
 public:
  // o of every site, m, ell, scores, weights, reciprocal RMS of every source.
  static variable_list forward(AutogradContext* context, at::TensorList sources,
                               const Tensor& queries, double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [outputs, max, sum, scores, weights, inverse_rms] =
        phase_one_operation().call(sources, queries, eps, /*for_backward=*/true);
    variable_list saved(sources.begin(), sources.end());
    saved.insert(saved.end(), inverse_rms.begin(), inverse_rms.end());
    saved.insert(saved.end(), {queries, scores, weights});
    context->save_for_backward(saved);
    context->saved_data["sources"] = std::ssize(sources);
    variable_list results = outputs, constants = inverse_rms;
    constants.insert(constants.end(), {max, scores, weights});
    context->mark_non_differentiable(constants);
    context->set_materialize_grads(false);
    results.insert(results.end(), {max, sum, scores, weights});
    results.insert(results.end(), inverse_rms.begin(), inverse_rms.end());
    return results;
  }

  // Of the sources, the queries and eps.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto N = static_cast<size_t>(context->saved_data["sources"].toInt());
    const at::TensorList all(saved);
    const Tensor &queries = saved[2 * N], &scores = saved[2 * N + 1], &weights = saved[2 * N + 2];
    const auto S = static_cast<size_t>(queries.size(0));
    variable_list result(N + 2), grad_outputs(grads.begin(), grads.begin() + queries.size(0));
    Tensor grad_sum = grads[S + 1];
    if (!grad_sum.defined() && std::none_of(grad_outputs.begin(), grad_outputs.end(),
                                            [](const Tensor& grad) { return grad.defined(); })) {
      return result;
    }
    for (Tensor& grad : grad_outputs) {
      if (!grad.defined()) grad = at::zeros_like(saved[0]);
    }
    if (!grad_sum.defined()) grad_sum = at::zeros_like(weights.narrow(0, 0, queries.size(0)));
    const c10::List<bool> needed = needed_inputs(context, 0, N);
    const auto [grad_sources, grad_queries] = phase_one_backward_operation().call(
        grad_outputs, grad_sum, all.slice(0, N), queries, scores, weights, all.slice(N, N), needed);
    place_gradients(grad_sources, needed, result.begin());
    result[N] = grad_queries;
    return result;
  }
};

PhaseOne phase_one_autograd(at::TensorList sources, const Tensor& queries, double eps,
                            bool for_backward) {
  variable_list inputs(sources.begin(), sources.end());
  inputs.push_back(queries);
  require_untransformed("depth_attention_phase_one_fused", inputs);
  if (!for_backward) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return phase_one_operation().call(sources, queries, eps, for_backward);
  }
  const variable_list all = PhaseOneAutograd::apply(sources, queries, eps);
  const auto statistics = all.begin() + queries.size(0);
  return {
      Tensors(all.begin(), statistics),  statistics[0], statistics[1], statistics[2], statistics[3],
      Tensors(statistics + 4, all.end())};
}

// ---- Phase 2 ----

PhaseTwo phase_two_meta(const Tensor& earlier, const Tensor& /*max*/, const Tensor& /*sum*/,
                        at::TensorList recent, const Tensor& /*query*/, double /*eps*/,
                        bool for_backward) {
  const PhaseTwoResult result = allocate_phase_two(
      earlier, std::ssize(recent), /*has_earlier=*/true, /*has_norm=*/false, for_backward);
  return {result.x, result.scores, result.weights, result.earlier_weight,
          allocate_inverse_rms(recent, for_backward)};
}

PhaseTwo phase_two_cpu(const Tensor& earlier, const Tensor& max, const Tensor& sum,
                       at::TensorList recent, const Tensor& query, double eps, bool for_backward) {
  PhaseTwo all = phase_two_meta(earlier, max, sum, recent, query, eps, for_backward);
  const auto& [output, scores, weights, earlier_weight, inverse_rms] = all;
  phase_two_forward(
      {.earlier = earlier,
       .max = max,
       .sum = sum,
       .recent = recent.vec(),
       .query_D = query.contiguous(),
       .eps = eps},
      unknown(inverse_rms, recent.size()),
      {.x = output, .scores = scores, .weights = weights, .earlier_weight = earlier_weight});
  return all;
}

PhaseTwoGradientList phase_two_backward_meta(const Tensor&, const Tensor& output,
                                             at::TensorList recent, const Tensor& query,
                                             const Tensor&, const Tensor&, const Tensor&,
                                             at::TensorList, c10::List<bool> recent_needed) {
  return {empty_like_rows(output), empty_per_token(output),
          allocate_gradients(recent, recent_needed),
          at::empty_like(query, query.options(), at::MemoryFormat::Contiguous)};
}

PhaseTwoGradientList phase_two_backward_cpu(const Tensor& grad_output, const Tensor& output,
                                            at::TensorList recent, const Tensor& query,
                                            const Tensor& scores, const Tensor& weights,
                                            const Tensor& earlier_weight,
                                            at::TensorList inverse_rms,
                                            c10::List<bool> recent_needed) {
  const Tensors gradients = allocate_gradients(recent, recent_needed);
  const PhaseTwoGradients result = phase_two_backward(
      {.recent = recent.vec(), .query_D = query.contiguous()}, inverse_rms, /*has_earlier=*/true,
      {.x = output, .scores = scores, .weights = weights, .earlier_weight = earlier_weight},
      grad_output, /*grad_partial=*/{}, targets_of(gradients, recent_needed));
  return {result.earlier, result.sum, gradients, result.query_D};
}

class PhaseTwoAutograd : public torch::autograd::Function<PhaseTwoAutograd> {
 public:
  // h, scores, weights, kappa, reciprocal RMS of every recent source.
  static variable_list forward(AutogradContext* context, const Tensor& earlier, const Tensor& max,
                               const Tensor& sum, at::TensorList recent, const Tensor& query,
                               double eps) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [output, scores, weights, earlier_weight, inverse_rms] =
        phase_two_operation().call(earlier, max, sum, recent, query, eps, /*for_backward=*/true);
    variable_list saved(recent.begin(), recent.end());
    saved.insert(saved.end(), inverse_rms.begin(), inverse_rms.end());
    saved.insert(saved.end(), {query, output, scores, weights, earlier_weight});
    context->save_for_backward(saved);
    context->saved_data["recent"] = std::ssize(recent);
    variable_list results = {output, scores, weights, earlier_weight};
    results.insert(results.end(), inverse_rms.begin(), inverse_rms.end());
    context->mark_non_differentiable(variable_list(results.begin() + 1, results.end()));
    context->set_materialize_grads(false);
    return results;
  }

  // Of o, m, ell, the recent sources, the query and eps.
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto K = static_cast<size_t>(context->saved_data["recent"].toInt());
    const at::TensorList all(saved);
    const Tensor* rest = &saved[2 * K];
    variable_list result(K + 5);
    if (!grads[0].defined()) return result;
    const c10::List<bool> needed = needed_inputs(context, 3, K);
    const auto [grad_earlier, grad_sum, grad_recent, grad_query] =
        phase_two_backward_operation().call(grads[0], rest[1], all.slice(0, K), rest[0], rest[2],
                                            rest[3], rest[4], all.slice(K, K), needed);
    result[0] = grad_earlier;
    result[2] = grad_sum;
    place_gradients(grad_recent, needed, result.begin() + 3);
    result[3 + K] = grad_query;
    return result;
  }
};

PhaseTwo phase_two_autograd(const Tensor& earlier, const Tensor& max, const Tensor& sum,
                            at::TensorList recent, const Tensor& query, double eps,
                            bool for_backward) {
  variable_list inputs(recent.begin(), recent.end());
  inputs.insert(inputs.end(), {earlier, max, sum, query});
  require_untransformed("depth_attention_phase_two_fused", inputs);
  if (!for_backward) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return phase_two_operation().call(earlier, max, sum, recent, query, eps, for_backward);
  }
  const variable_list all = PhaseTwoAutograd::apply(earlier, max, sum, recent, query, eps);
  return {all[0], all[1], all[2], all[3], Tensors(all.begin() + 4, all.end())};
}

// ---- What is public ----

// Sources and rows of one shape, dtype and device; queries in their compute type, of `dims`.
void check_phase(const char* operation, at::TensorList rows, const Tensor& queries, int64_t dims,
                 double eps) {
  require(!rows.empty(), "{}: sources is empty; it needs at least one tensor", operation);
  const Tensor& first = rows[0];
  for (const Tensor& row : rows) {
    if (row.dim() < 1 || row.sym_sizes() != first.sym_sizes() ||
        row.scalar_type() != first.scalar_type() || row.device() != first.device()) {
      fail("{}: a source is {} {} on {}, the first {} {} on {}; all must be alike, [..., D]",
           operation, c10::toString(row.scalar_type()), shape_of(row), row.device().str(),
           c10::toString(first.scalar_type()), shape_of(first), first.device().str());
    }
  }
  require(at::isFloatingType(first.scalar_type()),
          "{}: sources must be of a floating dtype, not {}", operation,
          c10::toString(first.scalar_type()));
  if (first.sym_size(-1) < 1) fail("{}: sources have no channels: D must be positive", operation);
  if (queries.dim() != dims || queries.sym_size(-1) != first.sym_size(-1) ||
      queries.sym_size(0) < 1 || queries.scalar_type() != compute_dtype(first) ||
      queries.device() != first.device()) {
    fail("{}: queries must be {} {} on {} for sources {}, but are {} {} on {}", operation,
         c10::toString(compute_dtype(first)), dims == 1 ? "[D]" : "[S, D]", first.device().str(),
         shape_of(first), c10::toString(queries.scalar_type()), shape_of(queries),
         queries.device().str());
  }
  require(eps > 0, "{}: eps must be positive, but is {}", operation, eps);
}

std::tuple<Tensors, Tensors, Tensors> phase_one(at::TensorList sources, const Tensor& queries,
                                                double eps) {
  check_phase("depth_attention_phase_one", sources, queries, 2, eps);
  variable_list inputs(sources.begin(), sources.end());
  inputs.push_back(queries);
  if (!can_fuse_depth_attention(sources) || is_transformed(inputs)) {
    return depth_attention_phase_one_composed(sources, queries, eps);
  }
  const PhaseOne all = phase_one_operation().call(sources, queries, eps, records(inputs));
  return {std::get<0>(all), std::get<1>(all).unbind(0), std::get<2>(all).unbind(0)};
}

Tensor phase_two(const Tensor& earlier, const Tensor& max, const Tensor& sum, at::TensorList recent,
                 const Tensor& query, double eps) {
  variable_list inputs = {earlier};
  inputs.insert(inputs.end(), recent.begin(), recent.end());
  check_phase("depth_attention_phase_two", inputs, query, 1, eps);
  for (const Tensor& statistic : {max, sum}) {
    if (statistic.dim() != earlier.dim() - 1 ||
        statistic.sym_sizes() != earlier.sym_sizes().slice(0, earlier.dim() - 1) ||
        statistic.scalar_type() != query.scalar_type() || statistic.device() != earlier.device()) {
      fail(
          "depth_attention_phase_two: max and sum must be phase 1's, one number a token of {} {}; "
          "one is {} {}",
          c10::toString(query.scalar_type()), shape_of(earlier),
          c10::toString(statistic.scalar_type()), shape_of(statistic));
    }
  }
  const bool has_kernels = can_fuse_depth_attention(inputs);
  inputs.insert(inputs.end(), {sum, query});
  if (!has_kernels || is_transformed(inputs)) {
    return depth_attention_phase_two_composed(earlier, max, sum, recent, query, eps);
  }
  return std::get<0>(
      phase_two_operation().call(earlier, max, sum, recent, query, eps, records(inputs)));
}

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "depth_attention_phase_one(Tensor[] sources, Tensor queries, float eps)"
      " -> (Tensor[] outputs, Tensor[] max, Tensor[] sum)",
      &phase_one);
  m.def(
      "depth_attention_phase_one_fused(Tensor[] sources, Tensor queries, float eps,"
      " bool for_backward) -> (Tensor[] outputs, Tensor max, Tensor sum, Tensor scores,"
      " Tensor weights, Tensor[] inverse_rms)");
  m.def(
      "depth_attention_phase_one_fused_backward(Tensor[] grad_outputs, Tensor grad_sum,"
      " Tensor[] sources, Tensor queries, Tensor scores, Tensor weights, Tensor[] inverse_rms,"
      " bool[] source_needed) -> (Tensor[] grad_sources, Tensor grad_queries)");
  m.def(
      "depth_attention_phase_two(Tensor earlier, Tensor max, Tensor sum, Tensor[] recent,"
      " Tensor query, float eps) -> Tensor",
      &phase_two);
  m.def(
      "depth_attention_phase_two_fused(Tensor earlier, Tensor max, Tensor sum, Tensor[] recent,"
      " Tensor query, float eps, bool for_backward) -> (Tensor output, Tensor scores,"
      " Tensor weights, Tensor earlier_weight, Tensor[] inverse_rms)");
  m.def(
      "depth_attention_phase_two_fused_backward(Tensor grad_output, Tensor output,"
      " Tensor[] recent, Tensor query, Tensor scores, Tensor weights, Tensor earlier_weight,"
      " Tensor[] inverse_rms, bool[] recent_needed) -> (Tensor grad_earlier, Tensor grad_sum,"
      " Tensor[] grad_recent, Tensor grad_query)");
}

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("depth_attention_phase_one_fused", &phase_one_cpu);
  m.impl("depth_attention_phase_one_fused_backward", &phase_one_backward_cpu);
  m.impl("depth_attention_phase_two_fused", &phase_two_cpu);
  m.impl("depth_attention_phase_two_fused_backward", &phase_two_backward_cpu);
}
TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("depth_attention_phase_one_fused", &phase_one_meta);
  m.impl("depth_attention_phase_one_fused_backward", &phase_one_backward_meta);
  m.impl("depth_attention_phase_two_fused", &phase_two_meta);
  m.impl("depth_attention_phase_two_fused_backward", &phase_two_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("depth_attention_phase_one", &phase_one);
  m.impl("depth_attention_phase_two", &phase_two);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("depth_attention_phase_one_fused", &phase_one_autograd);
  m.impl("depth_attention_phase_one_fused_backward",
         torch::CppFunction::makeFromBoxedFunction<&once_differentiable>());
  m.impl("depth_attention_phase_two_fused", &phase_two_autograd);
  m.impl("depth_attention_phase_two_fused_backward",
         torch::CppFunction::makeFromBoxedFunction<&once_differentiable>());
}

}  // namespace
}  // namespace attnres
