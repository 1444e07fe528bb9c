// The operations of both phases whose results are new tensors and whose gradients are ordinary
// ones, for PyTorch's modules and compilers; and what records either phase, for the model's
// schedule too.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "attnres/ops/depth_attention/depth_attention.h"
#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Tensors = std::vector<Tensor>;

Tensors allocate_inverse_rms(at::TensorList sources, bool for_backward) {
  Tensors inverse_rms;
  for (const Tensor& source : sources) {
    if (for_backward) inverse_rms.push_back(empty_per_token(source));
  }
  return inverse_rms;
}

// What is kept for a backward, or no numbers.
Tensor or_empty(const Tensor& kept, const Tensor& like) {
  return kept.defined() ? kept : empty_result(like);
}

GradientTargets targets_of(const Tensors& gradients, at::TensorList sources,
                           const c10::List<bool>& needed) {
  GradientTargets targets;
  for (size_t n = 0, next = 0; n < needed.size(); ++n) {
    targets.gradients.push_back(needed[n] ? gradients[next++] : empty_result(sources[n]));
    targets.accumulate.push_back(false);
  }
  return targets;
}

// o, m, ell, and for the backward the scores, the weights and the sources' reciprocal RMS.
using PhaseOne = std::tuple<Tensors, Tensor, Tensor, Tensor, Tensor, Tensors>;

PhaseOne phase_one_fused(at::TensorList sources, const Tensor& queries, double eps,
                         bool for_backward) {
  const PhaseOneResult result =
      allocate_phase_one(sources[0], std::ssize(sources), queries.size(0), for_backward);
  const Tensors inverse_rms = allocate_inverse_rms(sources, for_backward);
  phase_one_out({{sources, inverse_rms}, queries, eps}, result);
  return {result.outputs,
          result.max,
          result.sum,
          or_empty(result.scores, sources[0]),
          or_empty(result.weights, sources[0]),
          inverse_rms};
}

// The gradients of the sources that `source_needed` names, in order; of the queries.
std::tuple<Tensors, Tensor> phase_one_fused_backward(at::TensorList grad_outputs,
                                                     const Tensor& grad_sum, at::TensorList sources,
                                                     const Tensor& queries, const Tensor& scores,
                                                     const Tensor& weights,
                                                     at::TensorList inverse_rms,
                                                     const c10::List<bool>& source_needed) {
  const Tensors gradients = allocate_gradients(sources, source_needed);
  const Tensor grad_queries =
      phase_one_backward_out({.sources = sources,
                              .inverse_rms = inverse_rms,
                              .queries_SD = queries,
                              .scores = scores,
                              .weights = weights,
                              .grad_outputs = grad_outputs,
                              .grad_sum = grad_sum,
                              .targets = targets_of(gradients, sources, source_needed)});
  return {gradients, grad_queries};
}

// h, and for the backward the scores, the weights, kappa and the sources' reciprocal RMS.
using PhaseTwo = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensors>;

PhaseTwo phase_two_fused(const Tensor& earlier, const Tensor& max, const Tensor& sum,
                         at::TensorList recent, const Tensor& query, double eps,
                         bool for_backward) {
  const PhaseTwoResult result = allocate_phase_two(
      earlier, std::ssize(recent), /*has_earlier=*/true, /*has_norm=*/false, for_backward);
  const Tensors inverse_rms = allocate_inverse_rms(recent, for_backward);
  phase_two_out({.earlier = earlier,
                 .max = max.unsqueeze(0),
                 .sum = sum.unsqueeze(0),
                 .recent = {recent, inverse_rms},
                 .queries_SD = query.unsqueeze(0),
                 .eps = eps},
                result);
  return {result.x, or_empty(result.scores, earlier), or_empty(result.weights, earlier),
          or_empty(result.earlier_weight, earlier), inverse_rms};
}

// The gradients of o, of ell, of the recent sources that are needed, of the query.
std::tuple<Tensor, Tensor, Tensors, Tensor> phase_two_fused_backward(
    const Tensor& grad_output, const Tensor& output, at::TensorList recent, const Tensor& query,
    const Tensor& scores, const Tensor& weights, const Tensor& earlier_weight,
    at::TensorList inverse_rms, const c10::List<bool>& recent_needed) {
  const Tensors gradients = allocate_gradients(recent, recent_needed);
  const PhaseTwoGradients result =
      phase_two_backward_out({.grad_x = grad_output,
                              .kept = output,
                              .recent = recent,
                              .inverse_rms = inverse_rms,
                              .query_D = query,
                              .scores = scores,
                              .weights = weights,
                              .earlier_weight = earlier_weight,
                              .targets = targets_of(gradients, recent, recent_needed)});
  return {result.earlier, result.sum, gradients, result.query_D};
}

constexpr Operation<phase_one_fused> kPhaseOne("attnres::depth_attention_phase_one_fused");
constexpr Operation<phase_one_fused_backward> kPhaseOneBackward(
    "attnres::depth_attention_phase_one_fused_backward");
constexpr Operation<phase_two_fused> kPhaseTwo("attnres::depth_attention_phase_two_fused");
constexpr Operation<phase_two_fused_backward> kPhaseTwoBackward(
    "attnres::depth_attention_phase_two_fused_backward");

// ---- Autograd ----

bool any_defined(const variable_list& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [](const Tensor& gradient) { return gradient.defined(); });
}

// What record_phase_one says.
class PhaseOneFunction : public torch::autograd::Function<PhaseOneFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList sources,
                               const Tensor& queries_SD, const Tensors& inverse_rms,
                               const PhaseOneResult& phase_one, bool in_schedule) {
    context->save_for_backward(
        in_one_list(sources, inverse_rms, queries_SD, phase_one.scores, phase_one.weights));
    context->saved_data["in_schedule"] = in_schedule;
    context->set_materialize_grads(false);
    return in_one_list(phase_one.outputs, phase_one.sum);
  }

  // The gradients of the sources and the queries.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const size_t N = (saved.size() - 3) / 2;
    const at::TensorList all(saved), sources = all.slice(0, N), inverse_rms = all.slice(N, N);
    const Tensor &queries = saved[2 * N], &scores = saved[2 * N + 1], &weights = saved[2 * N + 2];
    variable_list result(N + 4);
    if (!any_defined(gradients)) return result;
    Tensor of_sum = gradients.back();
    gradients.pop_back();
    for (Tensor& gradient : gradients) {
      if (!gradient.defined()) gradient = at::zeros_like(sources[0]);
    }
    if (context->saved_data["in_schedule"].toBool()) {
      require_first_derivative("depth_attention");
      const SourceGradients grad_sources(*context, sources);
      result = grad_sources.to_return(/*others=*/4);
      result[N] =
          phase_one_backward_out({.sources = sources,
                                  .inverse_rms = inverse_rms,
                                  .queries_SD = queries,
                                  .scores = scores,
                                  .weights = weights,
                                  .grad_outputs = gradients,
                                  .other_grad_scores = of_sum,
                                  .targets = {grad_sources.sums(), grad_sources.accumulate()}});
      return result;
    }
    if (!of_sum.defined()) of_sum = at::zeros_like(weights.narrow(0, 0, queries.size(0)));
    const c10::List<bool> needed = needed_inputs(context, 0, N);
    const auto [grad_sources, grad_queries] = kPhaseOneBackward->call(
        gradients, of_sum, sources, queries, scores, weights, inverse_rms, needed);
    place_gradients(grad_sources, needed, result.begin());
    result[N] = grad_queries;
    return result;
  }
};

// What record_phase_two says.
class PhaseTwoFunction : public torch::autograd::Function<PhaseTwoFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList /*finished*/,
                               const OptionalTensor& /*earlier*/, const OptionalTensor& /*sum*/,
                               at::TensorList parts, const Tensor& query,
                               const OptionalTensor& norm_gain, const PhaseTwoInputs& inputs,
                               const PhaseTwoResult& phase_two, bool in_schedule) {
    const auto& [x, scores, weights, earlier_weight, rho, normalized] = phase_two;
    const auto& [recent, inverse_rms, num_known] = inputs.recent;
    context->save_for_backward(in_one_list(recent, inverse_rms, query, norm_gain,
                                           normalized.defined() ? normalized : x, scores, weights,
                                           earlier_weight, rho));
    context->saved_data["parts"] = std::ssize(parts);
    context->saved_data["norm_eps"] = inputs.norm_eps;
    context->saved_data["kept_is_normalized"] = normalized.defined();
    context->saved_data["in_schedule"] = in_schedule;
    context->set_materialize_grads(false);
    if (parts.empty()) return {x};
    return {x, recent.back()};
  }

  // The gradients of the finished sources, o, ell, the parts, the query and the norm's gain.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const size_t K = (saved.size() - 7) / 2, parts = context->saved_data["parts"].toInt();
    const size_t finished = K - (parts > 0 ? 1 : 0);
    const at::TensorList recent = at::TensorList(saved).slice(0, K);
    const Tensor* rest = &saved[2 * K];
    variable_list result(finished + parts + 7);
    if (!any_defined(gradients)) return result;
    PhaseTwoGradients grads;
    Tensor grad_partial;
    if (context->saved_data["in_schedule"].toBool()) {
      require_first_derivative("depth_attention");
      const SourceGradients grad_finished(*context, recent.slice(0, finished));
      GradientTargets targets = {grad_finished.sums(), grad_finished.accumulate().copy()};
      if (parts > 0) {
        grad_partial = empty_like_rows(rest[2]);
        targets.gradients.push_back(grad_partial);
        targets.accumulate.push_back(false);
      }
      grads = into_targets(context, gradients, saved, targets);
      grads.sum = grads.scores.defined() ? grads.scores.unsqueeze(0) : Tensor();
      result = grad_finished.to_return(/*others=*/parts + 7);
    } else {
      const c10::List<bool> needed = needed_inputs(context, 0, K);
      Tensors grad_recent;
      std::tie(grads.earlier, grads.sum, grad_recent, grads.query_D) =
          kPhaseTwoBackward->call(gradients[0], rest[2], recent, rest[0], rest[3], rest[4], rest[5],
                                  at::TensorList(saved).slice(K, K), needed);
      place_gradients(grad_recent, needed, result.begin());
    }
    auto to = result.begin() + static_cast<int64_t>(finished);
    *to++ = grads.earlier;
    *to++ = grads.sum;
    for (size_t part = 0; part < parts; ++part) *to++ = grad_partial;
    *to++ = grads.query_D.view_as(rest[0]);
    if (rest[1].defined()) *to++ = grads.norm_gain_D.to(rest[1].scalar_type());
    return result;
  }

 private:
  static PhaseTwoGradients into_targets(AutogradContext* context, const variable_list& gradients,
                                        const variable_list& saved,
                                        const GradientTargets& targets) {
    const size_t K = (saved.size() - 7) / 2;
    const Tensor *rest = &saved[2 * K], &kept = rest[2];
    return phase_two_backward_out(
        {.grad_x = gradients[0].defined() ? gradients[0] : at::zeros_like(kept),
         .grad_partial = gradients.size() > 1 ? gradients[1] : Tensor(),
         .kept = kept,
         .kept_is_normalized = context->saved_data["kept_is_normalized"].toBool(),
         .recent = at::TensorList(saved).slice(0, K),
         .inverse_rms = at::TensorList(saved).slice(K, K),
         .query_D = rest[0][0],
         .norm_gain_D = rest[1].to(rest[6].scalar_type()).contiguous(),
         .norm_eps = context->saved_data["norm_eps"].toDouble(),
         .scores = rest[3],
         .weights = rest[4],
         .earlier_weight = rest[5],
         .rho = rest[6],
         .targets = targets});
  }
};

PhaseOne phase_one_autograd(at::TensorList sources, const Tensor& queries, double eps,
                            bool for_backward) {
  require_untransformed("depth_attention_phase_one_fused", in_one_list(sources, queries));
  PhaseOne all = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return kPhaseOne->call(sources, queries, eps, for_backward);
  }();
  if (!for_backward) return all;
  auto& [outputs, max, sum, scores, weights, inverse_rms] = all;
  outputs = record_phase_one(sources, queries, inverse_rms, {outputs, max, sum, scores, weights},
                             /*in_schedule=*/false);
  sum = outputs.back();
  outputs.pop_back();
  return all;
}

PhaseTwo phase_two_autograd(const Tensor& earlier, const Tensor& max, const Tensor& sum,
                            at::TensorList recent, const Tensor& query, double eps,
                            bool for_backward) {
  require_untransformed("depth_attention_phase_two_fused",
                        in_one_list(recent, earlier, max, sum, query));
  PhaseTwo all = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return kPhaseTwo->call(earlier, max, sum, recent, query, eps, for_backward);
  }();
  if (!for_backward) return all;
  auto& [output, scores, weights, earlier_weight, inverse_rms] = all;
  output = record_phase_two(
      {.earlier = earlier,
       .sum = sum,
       .recent = {recent, inverse_rms},
       .queries_SD = query,
       .eps = eps},
      /*parts=*/{}, /*norm_gain=*/{},
      {.x = output, .scores = scores, .weights = weights, .earlier_weight = earlier_weight},
      /*in_schedule=*/false)[0];
  return all;
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
      fail("{}: a source is {}, the first {}; all must be alike, [..., D]", operation,
           described(row), described(first));
    }
  }
  require(at::isFloatingType(first.scalar_type()),
          "{}: sources must be of a floating dtype, not {}", operation,
          c10::toString(first.scalar_type()));
  if (first.sym_size(-1) < 1) fail("{}: sources have no channels: D must be positive", operation);
  if (queries.dim() != dims || queries.sym_size(-1) != first.sym_size(-1) ||
      queries.sym_size(0) < 1 || queries.scalar_type() != compute_dtype(first) ||
      queries.device() != first.device()) {
    fail("{}: queries must be {} {} on {} for sources {}, but are {}", operation,
         c10::toString(compute_dtype(first)), dims == 1 ? "[D]" : "[S, D]", first.device().str(),
         shape_of(first), described(queries));
  }
  require(eps > 0, "{}: eps must be positive, but is {}", operation, eps);
}

std::tuple<Tensors, Tensors, Tensors> phase_one(at::TensorList sources, const Tensor& queries,
                                                double eps) {
  check_phase("depth_attention_phase_one", sources, queries, 2, eps);
  const variable_list inputs = in_one_list(sources, queries);
  if (!can_fuse_depth_attention(sources) || is_transformed(inputs)) {
    return depth_attention_phase_one_composed(sources, queries, eps);
  }
  const PhaseOne all = kPhaseOne->call(sources, queries, eps, records(inputs));
  return {std::get<0>(all), std::get<1>(all).unbind(0), std::get<2>(all).unbind(0)};
}

Tensor phase_two(const Tensor& earlier, const Tensor& max, const Tensor& sum, at::TensorList recent,
                 const Tensor& query, double eps) {
  variable_list inputs = in_one_list(earlier, recent);
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
  return std::get<0>(kPhaseTwo->call(earlier, max, sum, recent, query, eps, records(inputs)));
}

}  // namespace

std::vector<Tensor> record_phase_one(at::TensorList sources, const Tensor& queries_SD,
                                     const std::vector<Tensor>& inverse_rms,
                                     const PhaseOneResult& result, bool in_schedule) {
  return PhaseOneFunction::apply(sources, queries_SD, inverse_rms, result, in_schedule);
}

std::vector<Tensor> record_phase_two(const PhaseTwoInputs& inputs, at::TensorList parts,
                                     const OptionalTensor& norm_gain, const PhaseTwoResult& result,
                                     bool in_schedule) {
  const at::TensorList recent = inputs.recent.values;
  return PhaseTwoFunction::apply(recent.slice(0, recent.size() - (parts.empty() ? 0 : 1)),
                                 given(inputs.earlier), given(inputs.sum), parts, inputs.queries_SD,
                                 norm_gain, inputs, result, in_schedule);
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

TORCH_LIBRARY_IMPL(attnres, CompositeExplicitAutograd, m) {
  m.impl("depth_attention_phase_one_fused", &phase_one_fused);
  m.impl("depth_attention_phase_one_fused_backward", &phase_one_fused_backward);
  m.impl("depth_attention_phase_two_fused", &phase_two_fused);
  m.impl("depth_attention_phase_two_fused_backward", &phase_two_fused_backward);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("depth_attention_phase_one", &phase_one);
  m.impl("depth_attention_phase_two", &phase_two);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("depth_attention_phase_one_fused", &phase_one_autograd);
  m.impl("depth_attention_phase_two_fused", &phase_two_autograd);
  implement_once_differentiable(
      m, {"depth_attention_phase_one_fused_backward", "depth_attention_phase_two_fused_backward"});
}

}  // namespace attnres
