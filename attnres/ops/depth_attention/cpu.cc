// What the CPU's kernels compute, called with tensors. What there is no kernel for, of the phases,
// the fallback computes.
#include <ATen/ops/mul.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/zeros_like.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/ops/depth_attention/phases.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// w * g in the compute type: a product rounded to bfloat16 would be another query.
Tensor fold_query(const Tensor& query, const Tensor& key_gain, at::ScalarType compute) {
  return query.to(compute).mul(key_gain.to(compute)).contiguous();
}

FusedResult fused_cpu(at::TensorList sources, const Tensor& query, const Tensor& key_gain,
                      double eps, bool give_weights, bool for_backward) {
  const FusedResult result = allocate_fused(sources, give_weights, for_backward);
  const Tensor &output = std::get<0>(result), &weights = std::get<1>(result),
               &scores = std::get<2>(result), &inverse_rms = std::get<3>(result);
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const auto N = static_cast<int64_t>(sources.size());
  const Tensor folded_query = fold_query(query, key_gain, compute_dtype(sources[0]));
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    const std::vector<T*> rms =
        for_backward ? slices<T>(inverse_rms, N, tokens) : std::vector<T*>(N, nullptr);
    const Flags rms_known(N, false);
    Storage* const outputs[] = {data<Storage>(output)};
    const kernel::DepthAttentionForward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(folded_query), N, 1, tokens, width},
        .eps = eps,
        .complete = true,
        .inverse_rms_N = rms.data(),
        .rms_known_N = rms_known.data(),
        .outputs_S = outputs,
        .max_ST = nullptr,
        .sum_ST = nullptr,
        .scores_SNT = data<T>(scores),
        .weights_SNT = data<T>(weights)};
    parallel_over_tokens(tokens, N * width, [&](int64_t first, int64_t last) {
      kernel::depth_attention_forward(op, first, last);
    });
  });
  return result;
}

std::tuple<std::vector<Tensor>, Tensor, Tensor> fused_backward_cpu(
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_weights,
    at::TensorList sources, const Tensor& query, const Tensor& key_gain, const Tensor& weights,
    const Tensor& scores, const Tensor& inverse_rms, const c10::List<bool>& source_needed) {
  const at::ScalarType compute = compute_dtype(sources[0]);
  const std::vector<Tensor> grad_sources = allocate_gradients(sources, source_needed);
  const Tensor dh =
      grad_output ? grad_output->contiguous() : at::zeros_like(sources[0]).contiguous();
  const Tensor dalpha = contiguous_if_given(grad_weights);
  const Tensor folded_query = fold_query(query, key_gain, compute);
  const int64_t width = sources[0].size(-1), tokens = sources[0].numel() / width;
  const auto N = static_cast<int64_t>(sources.size());
  Tensor grad_folded_query;

  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    std::vector<Storage*> grad_pointers(sources.size(), nullptr);
    for (size_t n = 0, next = 0; n < sources.size(); ++n) {
      if (source_needed[n]) grad_pointers[n] = data<Storage>(grad_sources[next++]);
    }
    const std::vector<const T*> rms = slices<const T>(inverse_rms, N, tokens);
    const Flags accumulate(N, false);
    const Storage* const grad_outputs[] = {data<const Storage>(dh)};
    const kernel::DepthAttentionBackward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(folded_query), N, 1, tokens, width},
        .inverse_rms_N = rms.data(),
        .scores_SNT = data<const T>(scores),
        .weights_SNT = data<const T>(weights),
        .grad_outputs_S = grad_outputs,
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = data<const T>(dalpha),
        .grad_sources_N = grad_pointers.data(),
        .accumulate_N = accumulate.data()};
    grad_folded_query = sum_over_tokens(
        tokens, width, compute, [&](int64_t first, int64_t last, const Tensor& sums) {
          kernel::depth_attention_backward(op, first, last, data<T>(sums));
        });
  });
  return {grad_sources, at::mul(grad_folded_query, key_gain).to(query.scalar_type()),
          at::mul(grad_folded_query, query).to(key_gain.scalar_type())};
}

// What the kernels take of the reciprocal RMS of sources.
template <class T>
struct InverseRmsPointers {
  explicit InverseRmsPointers(const SourceRows& sources)
      : values(sources.values.size(), nullptr), known(std::ssize(values), false) {
    for (int64_t i = 0; i < std::ssize(sources.inverse_rms); ++i) {
      values[i] = data<T>(sources.inverse_rms[i]);
      known[i] = i < sources.num_known;
    }
  }
  std::vector<T*> values;
  Flags known;
};

// In `gradients` those of the storage's type, in `sums` those of the compute type.
template <class Storage>
struct TargetPointers {
  using T = kernel::Compute<Storage>;
  explicit TargetPointers(const GradientTargets& targets)
      : gradients(targets.gradients.size()),
        sums(targets.gradients.size()),
        accumulate(targets.accumulate) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Tensor& target = targets.gradients[i];
      target.element_size() == sizeof(Storage) ? void(gradients[i] = data<Storage>(target))
                                               : void(sums[i] = data<T>(target));
    }
  }
  std::vector<Storage*> gradients;
  std::vector<T*> sums;
  Flags accumulate;
};

}  // namespace

void phase_one_cpu(const PhaseOneInputs& inputs, const PhaseOneResult& result) {
  const at::TensorList sources = inputs.sources.values;
  if (!has_kernel(sources[0])) return phase_one_fallback(inputs, result);
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const int64_t N = std::ssize(sources), S = inputs.queries_SD.size(0);
  const Tensor queries_SD = inputs.queries_SD.contiguous();
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    const InverseRmsPointers<T> rms(inputs.sources);
    const std::vector<Storage*> outputs = pointers_to<Storage>(result.outputs);
    const kernel::DepthAttentionForward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(queries_SD), N, S, tokens, width},
        .eps = inputs.eps,
        .complete = false,
        .inverse_rms_N = rms.values.data(),
        .rms_known_N = rms.known.data(),
        .outputs_S = outputs.data(),
        .max_ST = data<T>(result.max),
        .sum_ST = data<T>(result.sum),
        .scores_SNT = data<T>(result.scores),
        .weights_SNT = data<T>(result.weights)};
    parallel_over_tokens(tokens, (N + S) * width, [&](int64_t begin, int64_t end) {
      kernel::depth_attention_forward(op, begin, end);
    });
  });
}

Tensor phase_one_backward_cpu(const PhaseOneBackwardInputs& inputs) {
  const at::TensorList sources = inputs.sources;
  if (!has_kernel(sources[0])) return phase_one_backward_fallback(inputs);
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const int64_t N = std::ssize(sources), S = inputs.queries_SD.size(0);
  const Tensor queries_SD = inputs.queries_SD.contiguous();
  const Tensor grad_sum = contiguous_if_given(inputs.grad_sum),
               others = contiguous_if_given(inputs.other_grad_scores);
  Tensor grad_queries;
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources), grads(inputs.grad_outputs);
    const std::vector<const T*> rms = pointers_to<const T>(inputs.inverse_rms);
    const TargetPointers<Storage> targets(inputs.targets);
    const kernel::DepthAttentionBackward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(queries_SD), N, S, tokens, width},
        .inverse_rms_N = rms.data(),
        .scores_SNT = data<const T>(inputs.scores),
        .weights_SNT = data<const T>(inputs.weights),
        .grad_outputs_S = grads.pointers(),
        .grad_sum_ST = data<const T>(grad_sum),
        .grad_weights_SNT = nullptr,
        .grad_sources_N = targets.gradients.data(),
        .accumulate_N = targets.accumulate.data(),
        .other_grad_scores_ST = data<const T>(others),
        .grad_sums_N = targets.sums.data()};
    grad_queries =
        sum_over_tokens(tokens, S * width, queries_SD.scalar_type(),
                        [&](int64_t begin, int64_t end, const Tensor& sums) {
                          kernel::depth_attention_backward(op, begin, end, data<T>(sums));
                        });
  });
  return grad_queries.view({S, width});
}

void phase_two_cpu(const PhaseTwoInputs& inputs, const PhaseTwoResult& result) {
  if (!has_kernel(result.x)) return phase_two_fallback(inputs, result);
  const int64_t width = result.x.size(-1), tokens = tokens_of(result.x);
  const int64_t K = std::ssize(inputs.recent.values);
  const Tensor max = contiguous_if_given(inputs.max), sum = contiguous_if_given(inputs.sum);
  const Tensor queries_SD = inputs.queries_SD.contiguous();
  with_storage_type(result.x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const auto site_row = [&](const Tensor& rows, int64_t numbers) -> const T* {
      return rows.defined() ? data<const T>(rows) + inputs.row * numbers : nullptr;
    };
    const Rows<Storage> recent(inputs.recent.values);
    Rows<Storage> single(at::TensorList{});
    const InverseRmsPointers<T> rms(inputs.recent);
    const kernel::PhaseTwoForward<Storage> op{
        .num_recent = K,
        .num_tokens = tokens,
        .width = width,
        .earlier_TD = single.add(inputs.earlier),
        .max_T = site_row(max, tokens),
        .sum_T = site_row(sum, tokens),
        .recent_K = recent.pointers(),
        .partial_TD = single.add(inputs.partial),
        .pending_TD = single.add(inputs.pending),
        .sum_TD = inputs.pending.defined() ? data<Storage>(inputs.recent.values.back()) : nullptr,
        .folded_query_D = site_row(queries_SD, width),
        .eps = inputs.eps,
        .gain_D = data<const T>(inputs.norm_gain_D),
        .norm_eps = inputs.norm_eps,
        .inverse_rms_K = rms.values.data(),
        .rms_known_K = rms.known.data(),
        .x_TD = data<Storage>(result.x),
        .normalized_TD = nullptr,
        .scores_KT = data<T>(result.scores),
        .weights_KT = data<T>(result.weights),
        .earlier_weight_T = data<T>(result.earlier_weight),
        .rho_T = data<T>(result.rho)};
    parallel_over_tokens(tokens, (K + 3) * width, [&](int64_t begin, int64_t end) {
      kernel::phase_two_forward(op, begin, end);
    });
  });
}

PhaseTwoGradients phase_two_backward_cpu(const PhaseTwoBackwardInputs& inputs) {
  const Tensor& gain = inputs.norm_gain_D;
  if (!has_kernel(inputs.x)) return phase_two_backward_fallback(inputs);
  const Tensor x = inputs.x.contiguous(), query_D = inputs.query_D.contiguous();
  Tensor factor;
  if (gain.defined()) factor = at::reciprocal(gain);
  const int64_t width = x.size(-1), tokens = tokens_of(x);
  PhaseTwoGradients gradients = allocate_phase_two_gradients(inputs);
  Tensor sums;
  with_storage_type(x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> recent(inputs.recent);
    Rows<Storage> single(at::TensorList{});
    const std::vector<const T*> rms = pointers_to<const T>(inputs.inverse_rms);
    const TargetPointers<Storage> targets(inputs.targets);
    const kernel::PhaseTwoBackward<Storage> op{
        .num_recent = std::ssize(inputs.recent),
        .num_tokens = tokens,
        .width = width,
        .recent_K = recent.pointers(),
        .folded_query_D = data<const T>(query_D),
        .gain_D = data<const T>(gain),
        .norm_eps = inputs.norm_eps,
        .inverse_rms_K = rms.data(),
        .scores_KT = data<const T>(inputs.scores),
        .weights_KT = data<const T>(inputs.weights),
        .earlier_weight_T = data<const T>(inputs.earlier_weight),
        .rho_T = data<const T>(inputs.rho),
        .kept_TD = single.add(x),
        .kept_factor_D = data<const T>(factor),
        .grad_x_TD = single.add(inputs.grad_x),
        .grad_sum_TD = single.add(inputs.grad_partial),
        .grad_earlier_TD = data<Storage>(gradients.earlier),
        .grad_sum_T = data<T>(gradients.sum),
        .grad_recent_K = targets.gradients.data(),
        .accumulate_K = targets.accumulate.data(),
        .grad_scores_T = data<T>(gradients.scores),
        .grad_sums_K = targets.sums.data()};
    sums = sum_over_tokens(tokens, (gain.defined() ? 2 : 1) * width, compute_dtype(x),
                           [&](int64_t begin, int64_t end, const Tensor& to) {
                             kernel::phase_two_backward(op, begin, end, data<T>(to));
                           });
  });
  gradients.query_D = sums.narrow(0, 0, width);
  if (gain.defined()) gradients.norm_gain_D = sums.narrow(0, width, width);
  return gradients;
}

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("depth_attention_fused", &fused_cpu);
  m.impl("depth_attention_fused_backward", &fused_backward_cpu);
  m.impl("depth_attention_phase_one_out", &call_phase_one<phase_one_cpu>);
  m.impl("depth_attention_phase_one_backward_out",
         &call_phase_one_backward<phase_one_backward_cpu>);
  m.impl("depth_attention_phase_two_out", &call_phase_two<phase_two_cpu>);
  m.impl("depth_attention_phase_two_backward_out",
         &call_phase_two_backward<phase_two_backward_cpu>);
}

}  // namespace attnres
