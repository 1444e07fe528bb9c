// What the CUDA kernels compute, called with tensors. What there is no kernel for, the fallback
// computes.
#include "attnres/ops/depth_attention/cuda.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/zeros_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/cuda_tensors.h"
#include "attnres/ops/depth_attention/fused.h"
#include "attnres/ops/depth_attention/phases.h"

namespace attnres {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

Tensor fold_query(const Tensor& query, const Tensor& key_gain) {
  return cuda_rows(query.to(at::kFloat).mul(key_gain.to(at::kFloat)));
}

template <class T>
std::vector<T*> pointers_of(at::TensorList tensors) {
  std::vector<T*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(data<T>(tensor));
  return pointers;
}

// What kernels take of the reciprocal RMS of sources.
struct InverseRms {
  explicit InverseRms(const SourceRows& sources)
      : values(sources.values.size(), nullptr), known(std::ssize(values), false) {
    for (int64_t i = 0; i < std::ssize(sources.inverse_rms); ++i) {
      values[i] = data<float>(sources.inverse_rms[i]);
      known[i] = i < sources.num_known;
    }
  }
  std::vector<float*> values;
  Flags known;
};

// In `gradients` those of the storage's type, in `sums` those in float32.
template <class Storage>
struct Targets {
  explicit Targets(const GradientTargets& targets)
      : gradients(targets.gradients.size(), nullptr),
        sums(targets.gradients.size(), nullptr),
        accumulate(std::ssize(gradients), false) {
    for (size_t i = 0; i < gradients.size(); ++i) {
      const Tensor& target = targets.gradients[i];
      if (target.element_size() == sizeof(Storage)) {
        gradients[i] = data<Storage>(target);
      } else {
        sums[i] = data<float>(target);
      }
      accumulate[static_cast<int64_t>(i)] = targets.accumulate[i];
    }
  }
  std::vector<Storage*> gradients;
  std::vector<float*> sums;
  Flags accumulate;
};

void require_kernel(bool has_one, const Tensor& rows) {
  require(has_one,
          "depth_attention: there is no CUDA kernel for these sources of {}; it needs float32 or "
          "bfloat16, a width that is a multiple of 8 up to 8192, and at most 256 sources: take "
          "depth_attention_composed",
          shape_of(rows));
}

FusedResult fused_cuda(at::TensorList sources, const Tensor& query, const Tensor& key_gain,
                       double eps, bool give_weights, bool for_backward) {
  require_kernel(has_cuda_kernel(sources[0]), sources[0]);
  const c10::cuda::CUDAGuard device(sources[0].device());
  const FusedResult result = allocate_fused(sources, give_weights, for_backward);
  const auto& [output, weights, scores, inverse_rms] = result;
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const auto N = std::ssize(sources);
  const Tensors rows = cuda_rows(sources);
  const Tensor folded_query = fold_query(query, key_gain);
  with_cuda_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const std::vector<const Storage*> pointers = pointers_of<const Storage>(rows);
    const std::vector<float*> rms =
        for_backward ? slices<float>(inverse_rms, N, tokens) : std::vector<float*>(N, nullptr);
    const Flags rms_known(N, false);
    Storage* const outputs[] = {data<Storage>(output)};
    const kernel::DepthAttentionForward<Storage> op{
        .inputs = {pointers.data(), data<const float>(folded_query), N, 1, tokens, width},
        .eps = eps,
        .complete = true,
        .inverse_rms_N = rms.data(),
        .rms_known_N = rms_known.data(),
        .outputs_S = outputs,
        .max_ST = nullptr,
        .sum_ST = nullptr,
        .scores_SNT = data<float>(scores),
        .weights_SNT = data<float>(weights)};
    require_kernel(gpu::depth_attention_on_gpu(op, cuda_stream()), sources[0]);
  });
  return result;
}

std::tuple<Tensors, Tensor, Tensor> fused_backward_cuda(
    const std::optional<Tensor>& grad_output, const std::optional<Tensor>& grad_weights,
    at::TensorList sources, const Tensor& query, const Tensor& key_gain, const Tensor& weights,
    const Tensor& scores, const Tensor& inverse_rms, const c10::List<bool>& source_needed) {
  const c10::cuda::CUDAGuard device(sources[0].device());
  const Tensors grad_sources = allocate_gradients(sources, source_needed);
  const Tensors rows = cuda_rows(sources);
  const Tensor dh = cuda_rows(grad_output ? *grad_output : at::zeros_like(rows[0]));
  const Tensor dalpha = grad_weights ? grad_weights->contiguous() : Tensor();
  const Tensor folded_query = fold_query(query, key_gain);
  const int64_t width = dh.size(-1), tokens = tokens_of(dh);
  const auto N = std::ssize(sources);
  const Tensor grad_folded_query = at::empty_like(folded_query),
               memory = cuda_run_sums(folded_query, tokens, width, width);
  with_cuda_type(dh.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const std::vector<const Storage*> pointers = pointers_of<const Storage>(rows);
    std::vector<Storage*> gradients(sources.size(), nullptr);
    for (size_t n = 0, next = 0; n < sources.size(); ++n) {
      if (source_needed[n]) gradients[n] = data<Storage>(grad_sources[next++]);
    }
    const std::vector<const float*> rms = slices<const float>(inverse_rms, N, tokens);
    const Flags accumulate(N, false);
    const Storage* const grad_outputs[] = {data<const Storage>(dh)};
    const kernel::DepthAttentionBackward<Storage> op{
        .inputs = {pointers.data(), data<const float>(folded_query), N, 1, tokens, width},
        .inverse_rms_N = rms.data(),
        .scores_SNT = data<const float>(scores),
        .weights_SNT = data<const float>(weights),
        .grad_outputs_S = grad_outputs,
        .grad_sum_ST = nullptr,
        .grad_weights_SNT = data<const float>(dalpha),
        .grad_sources_N = gradients.data(),
        .accumulate_N = accumulate.data()};
    require_kernel(
        gpu::depth_attention_backward_on_gpu(op, /*complete=*/true, data<float>(memory),
                                             data<float>(grad_folded_query), cuda_stream()),
        sources[0]);
  });
  return {grad_sources, at::mul(grad_folded_query, key_gain).to(query.scalar_type()),
          at::mul(grad_folded_query, query).to(key_gain.scalar_type())};
}

void phase_one_cuda(const PhaseOneInputs& inputs, const PhaseOneResult& result) {
  const Tensor& first = inputs.sources.values[0];
  const c10::cuda::CUDAGuard device(first.device());
  bool done = false;
  if (has_cuda_kernel(first)) {
    const Tensors rows = cuda_rows(inputs.sources.values);
    const Tensor queries_SD = cuda_rows(inputs.queries_SD);
    with_cuda_type(first.scalar_type(), [&](auto storage) {
      using Storage = decltype(storage);
      const std::vector<const Storage*> sources = pointers_of<const Storage>(rows);
      const InverseRms rms(inputs.sources);
      const std::vector<Storage*> outputs = pointers_of<Storage>(result.outputs);
      const kernel::DepthAttentionForward<Storage> op{
          .inputs = {sources.data(), data<const float>(queries_SD), std::ssize(sources),
                     queries_SD.size(0), tokens_of(first), first.size(-1)},
          .eps = inputs.eps,
          .complete = false,
          .inverse_rms_N = rms.values.data(),
          .rms_known_N = rms.known.data(),
          .outputs_S = outputs.data(),
          .max_ST = data<float>(result.max),
          .sum_ST = data<float>(result.sum),
          .scores_SNT = data<float>(result.scores),
          .weights_SNT = data<float>(result.weights)};
      done = gpu::depth_attention_on_gpu(op, cuda_stream());
    });
  }
  if (!done) phase_one_fallback(inputs, result);
}

Tensor phase_one_backward_cuda(const PhaseOneBackwardInputs& inputs) {
  const Tensor& first = inputs.sources[0];
  const c10::cuda::CUDAGuard device(first.device());
  if (!has_cuda_kernel(first)) return phase_one_backward_fallback(inputs);
  const Tensors rows = cuda_rows(inputs.sources), grads = cuda_rows(inputs.grad_outputs);
  const Tensor queries_SD = cuda_rows(inputs.queries_SD), grad_sum = cuda_rows(inputs.grad_sum),
               others = cuda_rows(inputs.other_grad_scores);
  const int64_t tokens = tokens_of(first), width = first.size(-1);
  const Tensor grad_queries = at::empty_like(queries_SD),
               memory = cuda_run_sums(queries_SD, tokens, width, queries_SD.numel());
  bool done = false;
  with_cuda_type(first.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const auto sources = pointers_of<const Storage>(rows);
    const auto grad_outputs = pointers_of<const Storage>(grads);
    const auto rms = pointers_of<const float>(inputs.inverse_rms);
    const Targets<Storage> targets(inputs.targets);
    const kernel::DepthAttentionBackward<Storage> op{
        .inputs = {sources.data(), data<const float>(queries_SD), std::ssize(sources),
                   queries_SD.size(0), tokens, width},
        .inverse_rms_N = rms.data(),
        .scores_SNT = data<const float>(inputs.scores),
        .weights_SNT = data<const float>(inputs.weights),
        .grad_outputs_S = grad_outputs.data(),
        .grad_sum_ST = data<const float>(grad_sum),
        .grad_weights_SNT = nullptr,
        .grad_sources_N = targets.gradients.data(),
        .accumulate_N = targets.accumulate.data(),
        .other_grad_scores_ST = data<const float>(others),
        .grad_sums_N = targets.sums.data()};
    done = gpu::depth_attention_backward_on_gpu(op, /*complete=*/false, data<float>(memory),
                                                data<float>(grad_queries), cuda_stream());
  });
  return done ? grad_queries : phase_one_backward_fallback(inputs);
}

void phase_two_cuda(const PhaseTwoInputs& inputs, const PhaseTwoResult& result) {
  const c10::cuda::CUDAGuard device(result.x.device());
  if (!has_cuda_kernel(result.x)) return phase_two_fallback(inputs, result);
  const int64_t width = result.x.size(-1), tokens = tokens_of(result.x);
  const Tensors rows = cuda_rows(inputs.recent.values);
  const Tensor earlier = cuda_rows(inputs.earlier), partial = cuda_rows(inputs.partial),
               pending = cuda_rows(inputs.pending), max = cuda_rows(inputs.max),
               sum = cuda_rows(inputs.sum), queries_SD = cuda_rows(inputs.queries_SD),
               gain_D = cuda_rows(inputs.norm_gain_D);
  bool done = false;
  with_cuda_type(result.x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const auto site_row = [&](const Tensor& of_sites, int64_t numbers) -> const float* {
      return of_sites.defined() ? data<const float>(of_sites) + inputs.row * numbers : nullptr;
    };
    const auto recent = pointers_of<const Storage>(rows);
    const InverseRms rms(inputs.recent);
    const kernel::PhaseTwoForward<Storage> op{
        .num_recent = std::ssize(recent),
        .num_tokens = tokens,
        .width = width,
        .earlier_TD = data<const Storage>(earlier),
        .max_T = site_row(max, tokens),
        .sum_T = site_row(sum, tokens),
        .recent_K = recent.data(),
        .partial_TD = data<const Storage>(partial),
        .pending_TD = data<const Storage>(pending),
        .sum_TD = pending.defined() ? data<Storage>(inputs.recent.values.back()) : nullptr,
        .folded_query_D = site_row(queries_SD, width),
        .eps = inputs.eps,
        .gain_D = data<const float>(gain_D),
        .norm_eps = inputs.norm_eps,
        .inverse_rms_K = rms.values.data(),
        .rms_known_K = rms.known.data(),
        .x_TD = data<Storage>(result.x),
        .normalized_TD = nullptr,
        .scores_KT = data<float>(result.scores),
        .weights_KT = data<float>(result.weights),
        .earlier_weight_T = data<float>(result.earlier_weight),
        .rho_T = data<float>(result.rho)};
    done = gpu::phase_two_on_gpu(op, cuda_stream());
  });
  if (!done) phase_two_fallback(inputs, result);
}

PhaseTwoGradients phase_two_backward_cuda(const PhaseTwoBackwardInputs& inputs) {
  const c10::cuda::CUDAGuard device(inputs.x.device());
  if (!has_cuda_kernel(inputs.x)) return phase_two_backward_fallback(inputs);
  const Tensor x = cuda_rows(inputs.x), query_D = cuda_rows(inputs.query_D),
               gain = cuda_rows(inputs.norm_gain_D), grad_x = cuda_rows(inputs.grad_x),
               grad_partial = cuda_rows(inputs.grad_partial);
  Tensor factor;
  if (gain.defined()) factor = gain.reciprocal();
  const Tensors rows = cuda_rows(inputs.recent);
  const int64_t width = x.size(-1), tokens = tokens_of(x);
  PhaseTwoGradients gradients = allocate_phase_two_gradients(inputs);
  const int64_t columns = (gain.defined() ? 2 : 1) * width;
  const Tensor memory = cuda_run_sums(x, tokens, width, columns),
               sums = cuda_run_sums(x, /*tokens=*/1, width, columns)[0];
  bool done = false;
  with_cuda_type(x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const auto recent = pointers_of<const Storage>(rows);
    const auto rms = pointers_of<const float>(inputs.inverse_rms);
    const Targets<Storage> targets(inputs.targets);
    const kernel::PhaseTwoBackward<Storage> op{
        .num_recent = std::ssize(recent),
        .num_tokens = tokens,
        .width = width,
        .recent_K = recent.data(),
        .folded_query_D = data<const float>(query_D),
        .gain_D = data<const float>(gain),
        .norm_eps = inputs.norm_eps,
        .inverse_rms_K = rms.data(),
        .scores_KT = data<const float>(inputs.scores),
        .weights_KT = data<const float>(inputs.weights),
        .earlier_weight_T = data<const float>(inputs.earlier_weight),
        .rho_T = data<const float>(inputs.rho),
        .kept_TD = data<const Storage>(x),
        .kept_factor_D = data<const float>(factor),
        .grad_x_TD = data<const Storage>(grad_x),
        .grad_sum_TD = data<const Storage>(grad_partial),
        .grad_earlier_TD = data<Storage>(gradients.earlier),
        .grad_sum_T = data<float>(gradients.sum),
        .grad_recent_K = targets.gradients.data(),
        .accumulate_K = targets.accumulate.data(),
        .grad_scores_T = data<float>(gradients.scores),
        .grad_sums_K = targets.sums.data()};
    done =
        gpu::phase_two_backward_on_gpu(op, data<float>(memory), data<float>(sums), cuda_stream());
  });
  if (!done) return phase_two_backward_fallback(inputs);
  gradients.query_D = sums.narrow(0, 0, width);
  if (gain.defined()) gradients.norm_gain_D = sums.narrow(0, width, width);
  return gradients;
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CUDA, m) {
  m.impl("depth_attention_fused", &fused_cuda);
  m.impl("depth_attention_fused_backward", &fused_backward_cuda);
  m.impl("depth_attention_phase_one_out", &call_phase_one<phase_one_cuda>);
  m.impl("depth_attention_phase_one_backward_out",
         &call_phase_one_backward<phase_one_backward_cuda>);
  m.impl("depth_attention_phase_two_out", &call_phase_two<phase_two_cuda>);
  m.impl("depth_attention_phase_two_backward_out",
         &call_phase_two_backward<phase_two_backward_cuda>);
}

}  // namespace attnres
