#include "attnres/ops/depth_scores/depth_scores.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <limits>
#include <optional>

#include "attnres/ops/depth_scores/kernel.h"
#include "attnres/ops/gradient_slot.h"
#include "attnres/ops/once_differentiable.h"
#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_sources(const char* name, at::TensorList sources, int64_t heads) {
  require(!sources.empty(), "{}: there are no sources", name);
  for (const Tensor& source : sources) {
    require(has_kernel(source) && source.dim() >= 1 && source.size(-1) > 0 &&
                source.sizes() == sources[0].sizes() &&
                source.scalar_type() == sources[0].scalar_type(),
            "{}: expected sources [..., D] of float32, float64 or bfloat16 on the CPU, all alike; "
            "the first is {} {}, one is {} {} on {}",
            name, c10::toString(sources[0].scalar_type()), shape_of(sources[0]),
            c10::toString(source.scalar_type()), shape_of(source), source.device().str());
  }
  require(heads >= 1 && sources[0].size(-1) % heads == 0,
          "{}: {} heads do not divide the {} channels of the sources", name, heads,
          sources[0].size(-1));
}

kernel::SourceSizes sizes_of(at::TensorList sources, int64_t heads) {
  return {.sources = static_cast<int64_t>(sources.size()),
          .tokens = tokens_of(sources[0]),
          .width = sources[0].size(-1),
          .heads = heads};
}

void over_tokens(const kernel::SourceSizes& sizes, const std::function<void(int64_t, int64_t)>& f) {
  parallel_over_tokens(sizes.tokens, sizes.sources * sizes.width, f);
}

// The gradients of sources, which are the first inputs of an operation.
class SourceGradients {
 public:
  SourceGradients(const AutogradContext& context, at::TensorList sources)
      : accumulate_(static_cast<int64_t>(sources.size()), false) {
    for (size_t n = 0; n < sources.size(); ++n) {
      gradients_.emplace_back(sources[n], context.needs_input_grad(n));
      accumulate_[static_cast<int64_t>(n)] = gradients_.back().accumulate();
    }
  }
  template <class T>
  std::vector<T*> pointers() const {
    std::vector<T*> pointers;
    for (const SourceGradient& gradient : gradients_) pointers.push_back(data<T>(gradient.sum()));
    return pointers;
  }
  const bool* accumulate() const { return accumulate_.data(); }
  // With places for `others`, which follow.
  variable_list to_return(size_t others) const {
    variable_list results;
    for (const SourceGradient& gradient : gradients_) results.push_back(gradient.to_return());
    results.resize(results.size() + others);
    return results;
  }

 private:
  std::vector<SourceGradient> gradients_;
  Flags accumulate_;
};

variable_list contiguous(at::TensorList tensors) {
  variable_list rows;
  for (const Tensor& tensor : tensors) rows.push_back(tensor.contiguous());
  return rows;
}

// What the kernel takes beside the sources.
struct Scoring {
  Tensor query;     // [D] or [..., D], contiguous
  Tensor key_gain;  // [D]; undefined: ones
  bool normalised = false, factorised = false;
  double eps = 0;
  int64_t heads = 1;
};

struct Scores {
  Tensor scores;       // [N, ..., H]
  Tensor inverse_rms;  // [N, ...]; undefined where keys are not normalised
};

template <class Storage>
kernel::DepthScores<Storage> scores_operation(const kernel::SourceSizes& sizes,
                                              const Storage* const* sources, const Scoring& scoring,
                                              const Scores& result) {
  using T = kernel::Compute<Storage>;
  return {.sizes = sizes,
          .sources_TD = sources,
          .query_D = data<const T>(scoring.query),
          .query_stride = scoring.query.dim() == 1 ? 0 : sizes.width,
          .key_gain_D = data<const T>(scoring.key_gain),
          .normalised = scoring.normalised,
          .factorised = scoring.factorised,
          .eps = scoring.eps,
          .scores_NTH = data<T>(result.scores),
          .inverse_rms_NT = data<T>(result.inverse_rms)};
}

Scores scores_of(at::TensorList sources, const Scoring& scoring) {
  RecordedOperation recorded(
      "attnres::depth_scores",
      [&] {
        variable_list read = sources.vec();
        read.insert(read.end(), {scoring.query, scoring.key_gain});
        return read;
      },
      /*passes=*/scoring.normalised ? 2 : 1);
  const auto N = static_cast<int64_t>(sources.size());
  Scores result;
  result.inverse_rms = empty_per_token(sources[0], N);
  std::vector<int64_t> sizes = result.inverse_rms.sizes().vec();
  sizes.push_back(scoring.heads);
  result.scores = at::empty(sizes, result.inverse_rms.options());
  if (!scoring.normalised) result.inverse_rms.reset();
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const Rows<Storage> rows(sources);
    const auto op =
        scores_operation(sizes_of(sources, scoring.heads), rows.pointers(), scoring, result);
    over_tokens(op.sizes,
                [&](int64_t first, int64_t last) { kernel::depth_scores(op, first, last); });
  });
  recorded.wrote({result.scores});
  return result;
}

class DepthScoresFunction : public torch::autograd::Function<DepthScoresFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList sources, const Tensor& query,
                        const std::optional<Tensor>& key_gain, bool normalised, bool factorised,
                        double eps, int64_t heads) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const Scoring scoring{query, key_gain.value_or(Tensor()), normalised, factorised, eps, heads};
    const Scores result = scores_of(sources, scoring);
    variable_list saved = {query, scoring.key_gain, result.inverse_rms};
    saved.insert(saved.end(), sources.begin(), sources.end());
    context->save_for_backward(saved);
    context->saved_data["factorised"] = factorised;
    context->saved_data["heads"] = heads;
    return result.scores;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("depth_scores");
    const variable_list saved = context->get_saved_variables();
    const at::TensorList sources = at::TensorList(saved).slice(3);
    const size_t N = sources.size();
    const Scoring scoring{.query = saved[0],
                          .key_gain = saved[1],
                          .normalised = saved[2].defined(),
                          .factorised = context->saved_data["factorised"].toBool(),
                          .heads = context->saved_data["heads"].toInt()};
    const Tensor grad_scores = gradients[0].contiguous();
    const SourceGradients grad_sources(*context, sources);
    const bool by_token = scoring.query.dim() > 1;
    const Tensor grad_query = by_token ? at::empty_like(scoring.query) : Tensor();
    const int64_t D = scoring.query.size(-1);
    Tensor sums;
    with_storage_type(sources[0].scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const Rows<Storage> rows(sources);
      const std::vector<T*> pointers = grad_sources.pointers<T>();
      const kernel::DepthScoresBackward<Storage> op{
          .forward = scores_operation(sizes_of(sources, scoring.heads), rows.pointers(), scoring,
                                      {.scores = {}, .inverse_rms = saved[2]}),
          .grad_scores_NTH = data<const T>(grad_scores),
          .grad_sources_TD = pointers.data(),
          .accumulate_N = grad_sources.accumulate(),
          .grad_query_TD = data<T>(grad_query)};
      sums = sum_over_tokens(op.forward.sizes.tokens, 2 * D, compute_dtype(sources[0]),
                             [&](int64_t first, int64_t last, const Tensor& part) {
                               kernel::depth_scores_backward(op, first, last, data<T>(part));
                             });
    });
    variable_list results = grad_sources.to_return(/*others=*/6);
    // Of their own: whoever keeps one need not keep both.
    results[N] = by_token ? grad_query : sums.narrow(0, 0, D).clone();
    if (scoring.key_gain.defined()) results[N + 1] = sums.narrow(0, D, D).clone();
    return results;
  }
};

Tensor sum_of(at::TensorList sources, const Tensor& weights) {
  RecordedOperation recorded("attnres::weighted_sum", [&] {
    variable_list read = sources.vec();
    read.push_back(weights);
    return read;
  });
  const Tensor sum = empty_like_rows(sources[0]);
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const Rows<Storage> rows(sources);
    const kernel::WeightedSum<Storage> op{
        .sizes = sizes_of(sources, weights.size(-1)),
        .sources_TD = rows.pointers(),
        .weights_NTH = data<const kernel::Compute<Storage>>(weights),
        .sum_TD = data<Storage>(sum)};
    over_tokens(op.sizes,
                [&](int64_t first, int64_t last) { kernel::weighted_sum(op, first, last); });
  });
  recorded.wrote({sum});
  return sum;
}

class WeightedSumFunction : public torch::autograd::Function<WeightedSumFunction> {
 public:
  static Tensor forward(AutogradContext* context, at::TensorList sources, const Tensor& weights) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    variable_list saved = {weights};
    saved.insert(saved.end(), sources.begin(), sources.end());
    context->save_for_backward(saved);
    return sum_of(sources, weights);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require_first_derivative("weighted_sum");
    const variable_list saved = context->get_saved_variables();
    const Tensor &weights = saved[0], grad_sum = gradients[0].contiguous();
    const at::TensorList sources = at::TensorList(saved).slice(1);
    const SourceGradients grad_sources(*context, sources);
    const Tensor grad_weights =
        context->needs_input_grad(sources.size()) ? at::empty_like(weights) : Tensor();
    with_storage_type(sources[0].scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      using T = kernel::Compute<Storage>;
      const Rows<Storage> rows(sources);
      const std::vector<T*> pointers = grad_sources.pointers<T>();
      const kernel::WeightedSumBackward<Storage> op{
          .forward = {.sizes = sizes_of(sources, weights.size(-1)),
                      .sources_TD = rows.pointers(),
                      .weights_NTH = data<const T>(weights),
                      .sum_TD = nullptr},
          .grad_sum_TD = data<const Storage>(grad_sum),
          .grad_sources_TD = pointers.data(),
          .accumulate_N = grad_sources.accumulate(),
          .grad_weights_NTH = data<T>(grad_weights)};
      over_tokens(op.forward.sizes, [&](int64_t first, int64_t last) {
        kernel::weighted_sum_backward(op, first, last);
      });
    });
    variable_list results = grad_sources.to_return(/*others=*/1);
    results[sources.size()] = grad_weights;
    return results;
  }
};

// elu(x) + 1, exact far below zero too.
Tensor feature_map(const Tensor& x) {
  return x.clamp_max(0).exp() + x.relu();
}

}  // namespace

Tensor depth_scores(at::TensorList sources, const DepthScoring& scoring) {
  check_sources("depth_scores", sources, scoring.heads);
  const auto& [query, key_gain, eps, heads, weighing] = scoring;
  const int64_t D = sources[0].size(-1);
  require(query.is_cpu() &&
              (query.sizes() == at::IntArrayRef(D) || query.sizes() == sources[0].sizes()),
          "depth_scores: of sources {} the query must be [D] or like them, on the CPU; it is {} on "
          "{}",
          shape_of(sources[0]), shape_of(query), query.device().str());
  require(!key_gain.defined() || (key_gain.is_cpu() && key_gain.sizes() == at::IntArrayRef(D)),
          "depth_scores: of sources {} the key's gain must be [D] on the CPU; it is {}",
          shape_of(sources[0]), shape_of(key_gain));
  const at::ScalarType type = compute_dtype(sources[0]);
  const bool normalised = key_gain.defined(), factorised = weighing == DepthWeighing::factorised;
  Tensor q = query.to(type);
  std::optional<Tensor> gain;
  if (factorised) {
    q = feature_map(q);
    if (normalised) gain = key_gain.to(type).contiguous();
  } else if (normalised) {
    q = q * key_gain.to(type);
  }
  q = q.contiguous();
  const variable_list rows = contiguous(sources);
  const Tensor any_gain = gain.value_or(Tensor());
  if (records(rows) || records({q, any_gain})) {
    return DepthScoresFunction::apply(at::TensorList(rows), q, gain, normalised, factorised, eps,
                                      heads);
  }
  return scores_of(rows, {q, any_gain, normalised, factorised, eps, heads}).scores;
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
  check_sources("weighted_sum", sources, by_token ? weights.size(-1) : 1);
  std::vector<int64_t> sizes = {static_cast<int64_t>(sources.size())};
  if (by_token) {
    const at::IntArrayRef tokens = sources[0].sizes().slice(0, sources[0].dim() - 1);
    sizes.insert(sizes.end(), tokens.begin(), tokens.end());
    sizes.push_back(weights.size(-1));
  }
  require(weights.is_cpu() && weights.sizes() == at::IntArrayRef(sizes),
          "weighted_sum: of {} sources {} the weights must be [N] or [N, ..., H] on the CPU; they "
          "are {} on {}",
          sources.size(), shape_of(sources[0]), shape_of(weights), weights.device().str());
  Tensor w = weights.to(compute_dtype(sources[0]));
  if (!by_token) w = w.view({-1, 1, 1}).expand({-1, tokens_of(sources[0]), 1});
  w = w.contiguous();
  const variable_list rows = contiguous(sources);
  return records(rows) || records({w}) ? WeightedSumFunction::apply(at::TensorList(rows), w)
                                       : sum_of(rows, w);
}

}  // namespace attnres
