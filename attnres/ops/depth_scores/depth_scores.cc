#include "attnres/ops/depth_scores/depth_scores.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/core/ScalarType.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>
#include <optional>

#include "attnres/ops/depth_scores/fused.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// ---- Scores ----

DepthScoresResult depth_scores_meta(at::TensorList sources, const Tensor& /*query*/,
                                    const std::optional<Tensor>& /*key_gain*/, bool normalised,
                                    bool /*factorised*/, double /*eps*/, int64_t heads) {
  return allocate_depth_scores(sources, normalised, heads);
}

// A backward puts the gradients of the sources into `grad_sources`, or adds them to what is there;
// one that is not wanted has no numbers.
DepthScoresGradients depth_scores_backward_meta(const Tensor& /*grad_scores*/,
                                                at::TensorList sources, const Tensor& query,
                                                const std::optional<Tensor>& key_gain,
                                                const std::optional<Tensor>& /*inverse_rms*/,
                                                bool /*factorised*/, int64_t /*heads*/,
                                                at::TensorList /*grad_sources*/,
                                                const c10::List<bool>& /*accumulate*/) {
  return {empty_like_rows(query), key_gain ? empty_like_rows(*key_gain) : empty_result(sources[0])};
}

constexpr Operation<depth_scores_meta> kDepthScores("attnres::depth_scores_fused");
constexpr Operation<depth_scores_backward_meta> kDepthScoresBackward(
    "attnres::depth_scores_fused_backward");

class DepthScoresFunction : public torch::autograd::Function<DepthScoresFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList sources,
                               const Tensor& query, const std::optional<Tensor>& key_gain,
                               bool normalised, bool factorised, double eps, int64_t heads) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const auto [scores, inverse_rms] =
        kDepthScores->call(sources, query, key_gain, normalised, factorised, eps, heads);
    context->save_for_backward(
        in_one_list(query, key_gain, normalised ? inverse_rms : Tensor(), sources));
    context->saved_data["factorised"] = factorised;
    context->saved_data["heads"] = heads;
    context->mark_non_differentiable({inverse_rms});
    context->set_materialize_grads(false);
    return {scores, inverse_rms};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &query = saved[0], &key_gain = saved[1], &inverse_rms = saved[2];
    const at::TensorList sources = at::TensorList(saved).slice(3);
    const size_t N = sources.size(), others = 6;
    if (!gradients[0].defined()) return variable_list(N + others);
    const SourceGradients grad_sources(*context, sources);
    const auto [grad_query, grad_key_gain] = kDepthScoresBackward->call(
        gradients[0], sources, query, given(key_gain), given(inverse_rms),
        context->saved_data["factorised"].toBool(), context->saved_data["heads"].toInt(),
        grad_sources.sums(), grad_sources.accumulate());
    variable_list results = grad_sources.to_return(others);
    results[N] = grad_query;
    if (key_gain.defined()) results[N + 1] = grad_key_gain;
    return results;
  }
};

DepthScoresResult depth_scores_autograd(at::TensorList sources, const Tensor& query,
                                        const std::optional<Tensor>& key_gain, bool normalised,
                                        bool factorised, double eps, int64_t heads) {
  require_untransformed("depth_scores_fused", in_one_list(sources, query, key_gain));
  const variable_list results =
      DepthScoresFunction::apply(sources, query, key_gain, normalised, factorised, eps, heads);
  return {results[0], results[1]};
}

// ---- Sums ----

Tensor weighted_sum_meta(at::TensorList sources, const Tensor& /*weights*/) {
  return empty_like_rows(sources[0]);
}

Tensor weighted_sum_backward_meta(const Tensor& /*grad_sum*/, at::TensorList /*sources*/,
                                  const Tensor& weights, bool weights_needed,
                                  at::TensorList /*grad_sources*/,
                                  const c10::List<bool>& /*accumulate*/) {
  return empty_if_wanted(weights_needed, weights);
}

constexpr Operation<weighted_sum_meta> kWeightedSum("attnres::weighted_sum_fused");
constexpr Operation<weighted_sum_backward_meta> kWeightedSumBackward(
    "attnres::weighted_sum_fused_backward");

class WeightedSumFunction : public torch::autograd::Function<WeightedSumFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList sources, const Tensor& weights) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    context->save_for_backward(in_one_list(weights, sources));
    return kWeightedSum->call(sources, weights);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::TensorList sources = at::TensorList(saved).slice(1);
    const bool weights_needed = context->needs_input_grad(sources.size());
    const SourceGradients grad_sources(*context, sources);
    const Tensor grad_weights =
        kWeightedSumBackward->call(gradients[0], sources, saved[0], weights_needed,
                                   grad_sources.sums(), grad_sources.accumulate());
    variable_list results = grad_sources.to_return(/*others=*/1);
    if (weights_needed) results[sources.size()] = grad_weights;
    return results;
  }
};

Tensor weighted_sum_autograd(at::TensorList sources, const Tensor& weights) {
  require_untransformed("weighted_sum_fused", in_one_list(sources, weights));
  return WeightedSumFunction::apply(sources, weights);
}

// ---- What is public ----

void check_depth_sources(const char* name, at::TensorList sources, const c10::SymInt& heads) {
  require(!sources.empty(), "{}: there are no sources", name);
  const Tensor& first = sources[0];
  for (const Tensor& source : sources) {
    if (source.dim() >= 1 && source.sym_size(-1) > 0 && source.sym_sizes() == first.sym_sizes() &&
        at::isFloatingType(source.scalar_type()) && source.scalar_type() == first.scalar_type() &&
        source.device() == first.device()) {
      continue;
    }
    fail("{}: expected sources [..., D] of a floating dtype, all alike; the first is {}, one is {}",
         name, described(first), described(source));
  }
  if (heads < 1 || first.sym_size(-1) % heads != 0) {
    fail("{}: {} heads do not divide the channels of the sources {}", name,
         heads.guard_int(__FILE__, __LINE__), shape_of(first));
  }
}

void check_depth_scoring(at::TensorList sources, const DepthScoring& scoring) {
  check_depth_sources("depth_scores", sources, scoring.heads);
  const Tensor &first = sources[0], &query = scoring.query, &key_gain = scoring.key_gain;
  const c10::SymInt D = first.sym_size(-1);
  const auto is_vector = [&](const Tensor& x) { return x.dim() == 1 && x.sym_size(0) == D; };
  if (query.device() != first.device() ||
      !(is_vector(query) || query.sym_sizes() == first.sym_sizes())) {
    fail("depth_scores: of sources {} the query must be [D] or like them, on {}; it is {} on {}",
         shape_of(first), first.device().str(), shape_of(query), query.device().str());
  }
  if (key_gain.defined() && (key_gain.device() != first.device() || !is_vector(key_gain))) {
    fail("depth_scores: of sources {} the key's gain must be [D] on {}; it is {} on {}",
         shape_of(first), first.device().str(), shape_of(key_gain), key_gain.device().str());
  }
}

// [N, ..., 1] of weights [N], the same for all tokens.
Tensor for_every_token(const Tensor& weights, const Tensor& source) {
  std::vector<c10::SymInt> sizes = source.sym_sizes().vec();
  sizes.back() = 1;
  sizes.insert(sizes.begin(), weights.sym_size(0));
  std::vector<int64_t> ones(sizes.size(), 1);
  ones[0] = -1;
  return weights.view(ones).expand_symint(sizes);
}

}  // namespace

DepthScoresResult allocate_depth_scores(at::TensorList sources, bool normalised, int64_t heads) {
  std::vector<c10::SymInt> sizes = sources[0].sym_sizes().vec();
  sizes.back() = heads;
  sizes.insert(sizes.begin(), std::ssize(sources));
  const auto options = sources[0].options().dtype(compute_dtype(sources[0])).requires_grad(false);
  return {at::empty_symint(sizes, options),
          normalised ? empty_per_token(sources[0], std::ssize(sources)) : empty_result(sources[0])};
}

Tensor feature_map(const Tensor& x) {
  return x.clamp_max(0).exp() + x.relu();
}

Tensor depth_scores(at::TensorList sources, const DepthScoring& scoring) {
  check_depth_scoring(sources, scoring);
  const auto& [query, key_gain, eps, heads, weighing] = scoring;
  if (!has_kernel(sources[0]) || is_transformed(sources) || is_transformed({query, key_gain})) {
    return depth_scores_composed(sources, scoring);
  }
  const at::ScalarType type = compute_dtype(sources[0]);
  const bool normalised = key_gain.defined(), factorised = weighing == DepthWeighing::factorised;
  Tensor q = query.to(type);
  std::optional<Tensor> gain;
  if (factorised) {
    q = feature_map(q);
    if (normalised) gain = key_gain.to(type);
  } else if (normalised) {
    q = q * key_gain.to(type);
  }
  return std::get<0>(
      call_operation(*kDepthScores, sources, q, gain, normalised, factorised, eps, heads));
}

Tensor weigh_scores(const Tensor& scores, DepthWeighing weighing) {
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

Tensor weighted_sum(at::TensorList sources, const Tensor& weights) {
  const bool by_token = weights.dim() > 1;
  check_depth_sources("weighted_sum", sources, by_token ? weights.sym_size(-1) : 1);
  std::vector<c10::SymInt> sizes = {std::ssize(sources)};
  if (by_token) {
    const c10::SymIntArrayRef rows = sources[0].sym_sizes();
    sizes.insert(sizes.end(), rows.begin(), rows.end());
    sizes.back() = weights.sym_size(-1);
  }
  if (weights.sym_sizes() != c10::SymIntArrayRef(sizes) ||
      weights.device() != sources[0].device()) {
    fail(
        "weighted_sum: of {} sources {} the weights must be [N] or [N, ..., H] on {}; they are {} "
        "on {}",
        sources.size(), shape_of(sources[0]), sources[0].device().str(), shape_of(weights),
        weights.device().str());
  }
  if (!has_kernel(sources[0]) || is_transformed(sources) || is_transformed({weights})) {
    return weighted_sum_composed(sources, weights);
  }
  const Tensor w = weights.to(compute_dtype(sources[0]));
  return call_operation(*kWeightedSum, sources, by_token ? w : for_every_token(w, sources[0]));
}

namespace {

Tensor scores_by_feature(at::TensorList sources, const Tensor& query,
                         const std::optional<Tensor>& key_gain, double eps, int64_t heads,
                         bool factorised) {
  return depth_scores(sources, {query, key_gain.value_or(Tensor()), eps, heads,
                                factorised ? DepthWeighing::factorised : DepthWeighing::softmax});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(attnres, m) {
  m.def(
      "depth_scores(Tensor[] sources, Tensor query, Tensor? key_gain, float eps, int heads,"
      " bool factorised) -> Tensor",
      &scores_by_feature);
  m.def(
      "depth_scores_fused(Tensor[] sources, Tensor query, Tensor? key_gain, bool normalised,"
      " bool factorised, float eps, int heads) -> (Tensor scores, Tensor inverse_rms)");
  m.def(
      "depth_scores_fused_backward(Tensor grad_scores, Tensor[] sources, Tensor query,"
      " Tensor? key_gain, Tensor? inverse_rms, bool factorised, int heads,"
      " Tensor(a!)[] grad_sources, bool[] accumulate)"
      " -> (Tensor grad_query, Tensor grad_key_gain)");
  m.def("weighted_sum(Tensor[] sources, Tensor weights) -> Tensor", &weighted_sum);
  m.def("weighted_sum_fused(Tensor[] sources, Tensor weights) -> Tensor");
  m.def(
      "weighted_sum_fused_backward(Tensor grad_sum, Tensor[] sources, Tensor weights,"
      " bool weights_needed, Tensor(a!)[] grad_sources, bool[] accumulate) -> Tensor grad_weights");
}

TORCH_LIBRARY_IMPL(attnres, Meta, m) {
  m.impl("depth_scores_fused", &depth_scores_meta);
  m.impl("depth_scores_fused_backward", &depth_scores_backward_meta);
  m.impl("weighted_sum_fused", &weighted_sum_meta);
  m.impl("weighted_sum_fused_backward", &weighted_sum_backward_meta);
}
TORCH_LIBRARY_IMPL(attnres, FuncTorchBatchedDecomposition, m) {
  m.impl("depth_scores", &scores_by_feature);
  m.impl("weighted_sum", &weighted_sum);
}
TORCH_LIBRARY_IMPL(attnres, Autograd, m) {
  m.impl("depth_scores_fused", &depth_scores_autograd);
  m.impl("weighted_sum_fused", &weighted_sum_autograd);
  implement_once_differentiable(m, {"depth_scores_fused_backward", "weighted_sum_fused_backward"});
}

}  // namespace attnres
