// The operations of both phases whose results are new tensors and whose gradients are ordinary
// ones, for PyTorch's modules and compilers; and what records either phase, for the model's
// schedule too.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/rsqrt.h>
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

Tensor or_undefined(const OptionalTensor& tensor) {
  return tensor.value_or(Tensor());
}

// As the one site of phase 1's results.
Tensor of_one_site(const OptionalTensor& statistic) {
  return statistic ? statistic->unsqueeze(0) : Tensor();
}

// x; the last recent source and `pending`, if that is given, added up; and for the backward the
// scores, the weights, kappa, rho and the sources' reciprocal RMS. What there is none of has no
// numbers.
using PhaseTwo = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensors>;

PhaseTwo phase_two_fused(const OptionalTensor& earlier, const OptionalTensor& max,
                         const OptionalTensor& sum, at::TensorList recent,
                         const OptionalTensor& pending, const Tensor& query, double eps,
                         const OptionalTensor& norm_gain, double norm_eps, bool for_backward) {
  const Tensor& like = earlier ? *earlier : recent[0];
  const PhaseTwoResult result = allocate_phase_two(like, std::ssize(recent), earlier.has_value(),
                                                   norm_gain.has_value(), for_backward);
  Tensors read = recent.vec();
  if (pending) read.back() = empty_like_rows(like);
  const Tensors inverse_rms = allocate_inverse_rms(read, for_backward);
  const Tensor gain = prepare_norm_gain(or_undefined(norm_gain), like, for_backward);
  phase_two_out({.earlier = or_undefined(earlier),
                 .max = of_one_site(max),
                 .sum = of_one_site(sum),
                 .recent = {read, inverse_rms},
                 .partial = pending ? recent.back() : Tensor(),
                 .pending = or_undefined(pending),
                 .queries_SD = query.unsqueeze(0),
                 .eps = eps,
                 .norm_gain_D = gain,
                 .norm_eps = norm_eps},
                result);
  return {result.x,
          pending ? read.back() : empty_result(like),
          or_empty(result.scores, like),
          or_empty(result.weights, like),
          or_empty(result.earlier_weight, like),
          or_empty(result.rho, like),
          inverse_rms};
}

// The gradients of o, of ell, of the recent sources that are needed, of the query, of the norm's
// gain.
std::tuple<Tensor, Tensor, Tensors, Tensor, Tensor> phase_two_fused_backward(
    const Tensor& grad_x, const OptionalTensor& grad_partial, const Tensor& x,
    at::TensorList recent, const Tensor& query, const OptionalTensor& norm_gain, double norm_eps,
    const Tensor& scores, const Tensor& weights, const OptionalTensor& earlier_weight,
    const OptionalTensor& rho, at::TensorList inverse_rms, const c10::List<bool>& recent_needed) {
  const Tensors gradients = allocate_gradients(recent, recent_needed);
  const Tensor gain = prepare_norm_gain(or_undefined(norm_gain), x, /*for_backward=*/true);
  const PhaseTwoGradients result =
      phase_two_backward_out({.grad_x = grad_x,
                              .grad_partial = or_undefined(grad_partial),
                              .x = x,
                              .recent = recent,
                              .inverse_rms = inverse_rms,
                              .query_D = query,
                              .norm_gain_D = gain,
                              .norm_eps = norm_eps,
                              .scores = scores,
                              .weights = weights,
                              .earlier_weight = or_undefined(earlier_weight),
                              .rho = or_undefined(rho),
                              .targets = targets_of(gradients, recent, recent_needed)});
  // A copy, since the two gradients lie in one tensor and results do not share memory.
  return {or_empty(result.earlier, x), or_empty(result.sum, x), gradients, result.query_D,
          norm_gain ? result.norm_gain_D.to(norm_gain->scalar_type(), /*non_blocking=*/false,
                                            /*copy=*/true)
                    : empty_result(x)};
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
    const auto& [x, scores, weights, earlier_weight, rho] = phase_two;
    const auto& [recent, inverse_rms, num_known] = inputs.recent;
    context->save_for_backward(in_one_list(recent, inverse_rms, query, norm_gain, x, scores,
                                           weights, earlier_weight, rho));
    context->saved_data["parts"] = std::ssize(parts);
    context->saved_data["norm_eps"] = inputs.norm_eps;
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
      const c10::List<bool> finished_needed = needed_inputs(context, 0, finished);
      c10::List<bool> needed = finished_needed.copy();
      if (parts > 0) needed.push_back(true);
      Tensors grad_recent;
      std::tie(grads.earlier, grads.sum, grad_recent, grads.query_D, grads.norm_gain_D) =
          kPhaseTwoBackward->call(
              grad_of_x(gradients, rest[2]), arriving(gradients), rest[2], recent, rest[0],
              given(rest[1]), context->saved_data["norm_eps"].toDouble(), rest[3], rest[4],
              given(rest[5]), given(rest[6]), at::TensorList(saved).slice(K, K), needed);
      if (!rest[5].defined()) grads.earlier = grads.sum = Tensor();  // there was no phase 1
      if (parts > 0) grad_partial = grad_recent.back();
      place_gradients(grad_recent, finished_needed, result.begin());
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
  static Tensor grad_of_x(const variable_list& gradients, const Tensor& x) {
    return gradients[0].defined() ? gradients[0] : at::zeros_like(x);
  }

  // The partial sum's gradient, from later sites.
  static OptionalTensor arriving(const variable_list& gradients) {
    return gradients.size() > 1 ? given(gradients[1]) : std::nullopt;
  }

  static PhaseTwoGradients into_targets(AutogradContext* context, const variable_list& gradients,
                                        const variable_list& saved,
                                        const GradientTargets& targets) {
    const size_t K = (saved.size() - 7) / 2;
    const Tensor *rest = &saved[2 * K], &x = rest[2];
    return phase_two_backward_out(
        {.grad_x = grad_of_x(gradients, x),
         .grad_partial = or_undefined(arriving(gradients)),
         .x = x,
         .recent = at::TensorList(saved).slice(0, K),
         .inverse_rms = at::TensorList(saved).slice(K, K),
         .query_D = rest[0][0],
         .norm_gain_D = prepare_norm_gain(rest[1], x, /*for_backward=*/true),
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

PhaseTwo phase_two_autograd(const OptionalTensor& earlier, const OptionalTensor& max,
                            const OptionalTensor& sum, at::TensorList recent,
                            const OptionalTensor& pending, const Tensor& query, double eps,
                            const OptionalTensor& norm_gain, double norm_eps, bool for_backward) {
  require_untransformed("depth_attention_phase_two_fused",
                        in_one_list(recent, earlier, max, sum, pending, query, norm_gain));
  PhaseTwo all = [&] {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    return kPhaseTwo->call(earlier, max, sum, recent, pending, query, eps, norm_gain, norm_eps,
                           for_backward);
  }();
  if (!for_backward) return all;
  auto& [x, partial, scores, weights, earlier_weight, rho, inverse_rms] = all;
  Tensors read = recent.vec(), parts;
  if (pending) {
    parts = {read.back(), *pending};
    read.back() = partial;
  }
  const Tensors recorded = record_phase_two({.earlier = or_undefined(earlier),
                                             .sum = or_undefined(sum),
                                             .recent = {read, inverse_rms},
                                             .queries_SD = query,
                                             .eps = eps,
                                             .norm_eps = norm_eps},
                                            parts, norm_gain,
                                            {.x = x,
                                             .scores = scores,
                                             .weights = weights,
                                             .earlier_weight = earlier ? earlier_weight : Tensor(),
                                             .rho = norm_gain ? rho : Tensor()},
                                            /*in_schedule=*/false);
  x = recorded[0];
  if (pending) partial = recorded[1];
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
        row.scalar_type() != first.scalar_type() || !same_device(row.device(), first.device())) {
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
      !same_device(queries.device(), first.device())) {
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

// What phase 1 left.
void check_statistics(const char* operation, const Tensor& earlier, const Tensor& max,
                      const Tensor& sum, const Tensor& query) {
  for (const Tensor& statistic : {max, sum}) {
    if (statistic.dim() != earlier.dim() - 1 ||
        statistic.sym_sizes() != earlier.sym_sizes().slice(0, earlier.dim() - 1) ||
        statistic.scalar_type() != query.scalar_type() ||
        !same_device(statistic.device(), earlier.device())) {
      fail("{}: max and sum must be phase 1's, one number a token of {} {}; one is {} {}",
           operation, c10::toString(query.scalar_type()), shape_of(earlier),
           c10::toString(statistic.scalar_type()), shape_of(statistic));
    }
  }
}

void check_norm(const char* operation, const Tensor& gain, double eps, const Tensor& rows) {
  if (gain.dim() != 1 || gain.sym_size(0) != rows.sym_size(-1) ||
      !same_device(gain.device(), rows.device()) ||
      (gain.scalar_type() != rows.scalar_type() && gain.scalar_type() != at::kFloat)) {
    fail("{}: norm_gain must be [D] in the dtype of rows or float32; rows are {}, it is {}",
         operation, described(rows), described(gain));
  }
  require(eps >= 0, "{}: norm_eps must not be negative, but is {}", operation, eps);
}

Tensor phase_two(const Tensor& earlier, const Tensor& max, const Tensor& sum, at::TensorList recent,
                 const Tensor& query, double eps) {
  constexpr const char* kName = "depth_attention_phase_two";
  variable_list inputs = in_one_list(earlier, recent);
  check_phase(kName, inputs, query, 1, eps);
  check_statistics(kName, earlier, max, sum, query);
  const bool has_kernels = can_fuse_depth_attention(inputs);
  inputs.insert(inputs.end(), {sum, query});
  if (!has_kernels || is_transformed(inputs)) {
    return depth_attention_phase_two_composed(earlier, max, sum, recent, query, eps)
        .to(earlier.scalar_type());
  }
  return std::get<0>(kPhaseTwo->call(earlier, max, sum, recent, /*pending=*/std::nullopt, query,
                                     eps, /*norm_gain=*/std::nullopt, /*norm_eps=*/0,
                                     records(inputs)));
}

// x = norm_gain * h rho; and the last recent source and `pending`, added up, or no numbers.
std::tuple<Tensor, Tensor> phase_two_normed_composed(
    const OptionalTensor& earlier, const OptionalTensor& max, const OptionalTensor& sum,
    at::TensorList recent, const OptionalTensor& pending, const Tensor& query, double eps,
    const Tensor& norm_gain, double norm_eps) {
  const Tensor& like = earlier ? *earlier : recent[0];
  Tensors read = recent.vec();
  if (pending) read.back() = at::add(read.back(), *pending);
  const Tensor h = depth_attention_phase_two_composed(or_undefined(earlier), or_undefined(max),
                                                      or_undefined(sum), read, query, eps);
  const Tensor rho = at::rsqrt(h.square().mean(-1, /*keepdim=*/true) + norm_eps);
  const Tensor x = norm_gain.to(h.scalar_type()) * (h * rho);
  return {x.to(like.scalar_type()), pending ? read.back() : empty_result(like)};
}

std::tuple<Tensor, Tensor> phase_two_normed(const OptionalTensor& earlier,
                                            const OptionalTensor& max, const OptionalTensor& sum,
                                            at::TensorList recent, const OptionalTensor& pending,
                                            const Tensor& query, double eps,
                                            const Tensor& norm_gain, double norm_eps) {
  constexpr const char* kName = "depth_attention_phase_two_normed";
  variable_list inputs = recent.vec();
  for (const OptionalTensor& rows : {earlier, pending}) {
    if (rows) inputs.push_back(*rows);
  }
  check_phase(kName, inputs, query, 1, eps);
  require(!pending || !recent.empty(), "{}: pending is added to the last recent source: give one",
          kName);
  if (earlier) {
    require(max && sum, "{}: earlier comes with phase 1's max and sum", kName);
    check_statistics(kName, *earlier, *max, *sum, query);
  }
  check_norm(kName, norm_gain, norm_eps, inputs[0]);
  const bool has_kernels = can_fuse_depth_attention(inputs);
  inputs.insert(inputs.end(), {query, norm_gain});
  if (sum) inputs.push_back(*sum);
  if (!has_kernels || is_transformed(inputs)) {
    return phase_two_normed_composed(earlier, max, sum, recent, pending, query, eps, norm_gain,
                                     norm_eps);
  }
  const PhaseTwo all = kPhaseTwo->call(earlier, max, sum, recent, pending, query, eps, norm_gain,
                                       norm_eps, records(inputs));
  return {std::get<0>(all), std::get<1>(all)};
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
      "depth_attention_phase_two_normed(Tensor? earlier, Tensor? max, Tensor? sum, Tensor[] recent,"
      " Tensor? pending, Tensor query, float eps, Tensor norm_gain, float norm_eps)"
      " -> (Tensor x, Tensor partial)",
      &phase_two_normed);
  m.def(
      "depth_attention_phase_two_fused(Tensor? earlier, Tensor? max, Tensor? sum, Tensor[] recent,"
      " Tensor? pending, Tensor query, float eps, Tensor? norm_gain, float norm_eps,"
      " bool for_backward) -> (Tensor x, Tensor partial, Tensor scores, Tensor weights,"
      " Tensor earlier_weight, Tensor rho, Tensor[] inverse_rms)");
  m.def(
      "depth_attention_phase_two_fused_backward(Tensor grad_x, Tensor? grad_partial, Tensor x,"
      " Tensor[] recent, Tensor query, Tensor? norm_gain, float norm_eps, Tensor scores,"
      " Tensor weights, Tensor? earlier_weight, Tensor? rho, Tensor[] inverse_rms,"
      " bool[] recent_needed) -> (Tensor grad_earlier, Tensor grad_sum, Tensor[] grad_recent,"
      " Tensor grad_query, Tensor grad_norm_gain)");
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
  m.impl("depth_attention_phase_two_normed", &phase_two_normed);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("depth_attention_phase_one_fused", &phase_one_autograd);
  m.impl("depth_attention_phase_two_fused", &phase_two_autograd);
  implement_once_differentiable(
      m, {"depth_attention_phase_one_fused_backward", "depth_attention_phase_two_fused_backward"});
}

}  // namespace attnres
