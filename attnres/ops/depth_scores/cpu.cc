#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <optional>

#include "attnres/ops/depth_scores/fused.h"
#include "attnres/ops/depth_scores/kernel.h"
#include "attnres/ops/recorded_operation.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

kernel::SourceSizes sizes_of(at::TensorList sources, int64_t heads) {
  return {.sources = static_cast<int64_t>(sources.size()),
          .tokens = tokens_of(sources[0]),
          .width = sources[0].size(-1),
          .heads = heads};
}

void over_tokens(const kernel::SourceSizes& sizes, const std::function<void(int64_t, int64_t)>& f) {
  parallel_over_tokens(sizes.tokens, sizes.sources * sizes.width, f);
}

// What is read beside the sources.
struct ScoringRows {
  Tensor query;     // [D] or [..., D], contiguous
  Tensor key_gain;  // [D], contiguous; undefined: ones
  bool normalised = false, factorised = false;
  double eps = 0;
  int64_t heads = 1;
};

ScoringRows scoring_rows(const Tensor& query, const std::optional<Tensor>& key_gain) {
  return {.query = query.contiguous(), .key_gain = contiguous_if_given(key_gain)};
}

template <class Storage>
kernel::DepthScores<Storage> scores_operation(at::TensorList sources, const Rows<Storage>& rows,
                                              const ScoringRows& scoring, const Tensor& scores,
                                              const Tensor& inverse_rms) {
  using T = kernel::Compute<Storage>;
  const kernel::SourceSizes sizes = sizes_of(sources, scoring.heads);
  return {.sizes = sizes,
          .sources_TD = rows.pointers(),
          .query_D = data<const T>(scoring.query),
          .query_stride = scoring.query.dim() == 1 ? 0 : sizes.width,
          .key_gain_D = data<const T>(scoring.key_gain),
          .normalised = scoring.normalised,
          .factorised = scoring.factorised,
          .eps = scoring.eps,
          .scores_NTH = data<T>(scores),
          .inverse_rms_NT = data<T>(inverse_rms)};
}

DepthScoresResult depth_scores_cpu(at::TensorList sources, const Tensor& query,
                                   const std::optional<Tensor>& key_gain, bool normalised,
                                   bool factorised, double eps, int64_t heads) {
  ScoringRows scoring = scoring_rows(query, key_gain);
  scoring.normalised = normalised;
  scoring.factorised = factorised;
  scoring.eps = eps;
  scoring.heads = heads;
  RecordedOperation recorded(
      "attnres::depth_scores",
      [&] { return in_one_list(sources, scoring.query, scoring.key_gain); },
      /*passes=*/normalised ? 2 : 1);
  const DepthScoresResult result = allocate_depth_scores(sources, normalised, heads);
  const Tensor &scores = std::get<0>(result), &inverse_rms = std::get<1>(result);
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const Rows<Storage> rows(sources);
    const auto op = scores_operation(sources, rows, scoring, scores, inverse_rms);
    over_tokens(op.sizes,
                [&](int64_t first, int64_t last) { kernel::depth_scores(op, first, last); });
  });
  recorded.wrote({scores});
  return result;
}

DepthScoresGradients depth_scores_backward_cpu(const Tensor& grad_scores, at::TensorList sources,
                                               const Tensor& query,
                                               const std::optional<Tensor>& key_gain,
                                               const std::optional<Tensor>& inverse_rms,
                                               bool factorised, int64_t heads,
                                               at::TensorList grad_sources,
                                               const c10::List<bool>& accumulate) {
  ScoringRows scoring = scoring_rows(query, key_gain);
  scoring.normalised = inverse_rms.has_value();
  scoring.factorised = factorised;
  scoring.heads = heads;
  const Tensor grad_rows = grad_scores.contiguous();
  const bool by_token = query.dim() > 1;
  const Tensor grad_query = by_token ? at::empty_like(scoring.query) : Tensor();
  const int64_t D = query.size(-1);
  Tensor sums;
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    const std::vector<T*> gradients = pointers_to<T>(grad_sources);
    const Flags adds(accumulate);
    const kernel::DepthScoresBackward<Storage> op{
        .forward = scores_operation(sources, rows, scoring, {}, inverse_rms.value_or(Tensor())),
        .grad_scores_NTH = data<const T>(grad_rows),
        .grad_sources_TD = gradients.data(),
        .accumulate_N = adds.data(),
        .grad_query_TD = data<T>(grad_query)};
    sums = sum_over_tokens(op.forward.sizes.tokens, 2 * D, compute_dtype(sources[0]),
                           [&](int64_t first, int64_t last, const Tensor& part) {
                             kernel::depth_scores_backward(op, first, last, data<T>(part));
                           });
  });
  // Tensors of their own: whoever keeps one need not keep both.
  return {by_token ? grad_query : sums.narrow(0, 0, D).clone(),
          key_gain ? sums.narrow(0, D, D).clone() : empty_result(sources[0])};
}

template <class Storage>
kernel::WeightedSum<Storage> sum_operation(at::TensorList sources, const Rows<Storage>& rows,
                                           const Tensor& weights, const Tensor& sum) {
  return {.sizes = sizes_of(sources, weights.size(-1)),
          .sources_TD = rows.pointers(),
          .weights_NTH = data<const kernel::Compute<Storage>>(weights),
          .sum_TD = data<Storage>(sum)};
}

Tensor weighted_sum_cpu(at::TensorList sources, const Tensor& weights) {
  const Tensor weight_rows = weights.contiguous();
  RecordedOperation recorded("attnres::weighted_sum",
                             [&] { return in_one_list(sources, weight_rows); });
  const Tensor sum = empty_like_rows(sources[0]);
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    const Rows<decltype(storage)> rows(sources);
    const auto op = sum_operation(sources, rows, weight_rows, sum);
    over_tokens(op.sizes,
                [&](int64_t first, int64_t last) { kernel::weighted_sum(op, first, last); });
  });
  recorded.wrote({sum});
  return sum;
}

Tensor weighted_sum_backward_cpu(const Tensor& grad_sum, at::TensorList sources,
                                 const Tensor& weights, bool weights_needed,
                                 at::TensorList grad_sources, const c10::List<bool>& accumulate) {
  const Tensor grad_rows = grad_sum.contiguous(), weight_rows = weights.contiguous();
  const Tensor grad_weights = empty_if_wanted(weights_needed, weights);
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    const std::vector<T*> gradients = pointers_to<T>(grad_sources);
    const Flags adds(accumulate);
    const kernel::WeightedSumBackward<Storage> op{
        .forward = sum_operation(sources, rows, weight_rows, {}),
        .grad_sum_TD = data<const Storage>(grad_rows),
        .grad_sources_TD = gradients.data(),
        .accumulate_N = adds.data(),
        .grad_weights_NTH = data<T>(grad_weights)};
    over_tokens(op.forward.sizes, [&](int64_t first, int64_t last) {
      kernel::weighted_sum_backward(op, first, last);
    });
  });
  return grad_weights;
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("depth_scores_fused", &depth_scores_cpu);
  m.impl("depth_scores_fused_backward", &depth_scores_backward_cpu);
  m.impl("weighted_sum_fused", &weighted_sum_cpu);
  m.impl("weighted_sum_fused_backward", &weighted_sum_backward_cpu);
}

}  // namespace attnres
