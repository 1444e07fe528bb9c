#include "attnres/ops/depth_attention/phases.h"

#include <ATen/ops/ones_like.h>
#include <ATen/ops/reciprocal.h>

#include "attnres/ops/depth_attention/kernel.h"
#include "attnres/ops/depth_attention/kernel_phase_two.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// What the kernels take of a list of reciprocal RMS.
template <class T>
struct InverseRmsPointers {
  explicit InverseRmsPointers(const std::vector<InverseRms>& all)
      : known(static_cast<int64_t>(all.size()), false) {
    for (size_t i = 0; i < all.size(); ++i) {
      values.push_back(data<T>(all[i].values));
      known[static_cast<int64_t>(i)] = all[i].known;
    }
  }
  std::vector<T*> values;
  Flags known;
};

// In `gradients` those of the storage's type, in `sums` those of the compute type.
template <class Storage>
struct TargetPointers {
  using T = kernel::Compute<Storage>;
  explicit TargetPointers(const std::vector<GradientTarget>& all)
      : gradients(all.size()),
        sums(all.size()),
        accumulate(static_cast<int64_t>(all.size()), false) {
    for (size_t i = 0; i < all.size(); ++i) {
      const Tensor& target = all[i].gradient;
      const bool is_sum = target.defined() && target.element_size() != sizeof(Storage);
      is_sum ? void(sums[i] = data<T>(target)) : void(gradients[i] = data<Storage>(target));
      accumulate[static_cast<int64_t>(i)] = all[i].accumulate;
    }
  }
  std::vector<Storage*> gradients;
  std::vector<T*> sums;
  Flags accumulate;
};

template <class T>
std::vector<const T*> pointers_to(at::TensorList tensors) {
  std::vector<const T*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(data<const T>(tensor));
  return pointers;
}

}  // namespace

PhaseOneResult allocate_phase_one(const Tensor& source, int64_t num_sources, int64_t num_sites,
                                  bool for_backward) {
  PhaseOneResult result;
  for (int64_t s = 0; s < num_sites; ++s) result.outputs.push_back(empty_like_rows(source));
  result.max = empty_per_token(source, num_sites);
  result.sum = empty_per_token(source, num_sites);
  for (Tensor* saved : {&result.scores, &result.weights}) {
    *saved = for_backward ? empty_per_token(source, num_sites * num_sources) : empty_result(source);
  }
  return result;
}

void phase_one_forward(at::TensorList sources, const std::vector<InverseRms>& inverse_rms,
                       const Tensor& queries_SD, double eps, const PhaseOneResult& result) {
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const auto N = static_cast<int64_t>(sources.size()), S = queries_SD.size(0);
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources);
    const InverseRmsPointers<T> rms(inverse_rms);
    std::vector<Storage*> outputs;
    for (const Tensor& output : result.outputs) outputs.push_back(data<Storage>(output));
    const kernel::DepthAttentionForward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(queries_SD), N, S, tokens, width},
        .eps = eps,
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

Tensor phase_one_backward(at::TensorList sources, at::TensorList inverse_rms,
                          const Tensor& queries_SD, const Tensor& scores, const Tensor& weights,
                          at::TensorList grad_outputs, const JointSoftmax& joint,
                          const std::vector<GradientTarget>& grad_sources) {
  const int64_t width = sources[0].size(-1), tokens = tokens_of(sources[0]);
  const auto N = static_cast<int64_t>(sources.size()), S = queries_SD.size(0);
  const auto rows_of = [](const Tensor& given) {
    return given.defined() ? given.contiguous() : Tensor();
  };
  const Tensor grad_sum = rows_of(joint.grad_sum), others = rows_of(joint.other_grad_scores);
  Tensor grad_queries;
  with_storage_type(sources[0].scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> rows(sources), grads(grad_outputs);
    const std::vector<const T*> rms = pointers_to<T>(inverse_rms);
    const TargetPointers<Storage> targets(grad_sources);
    const kernel::DepthAttentionBackward<Storage> op{
        .inputs = {rows.pointers(), data<const T>(queries_SD), N, S, tokens, width},
        .inverse_rms_N = rms.data(),
        .scores_SNT = data<const T>(scores),
        .weights_SNT = data<const T>(weights),
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

PhaseTwoResult allocate_phase_two(const Tensor& like, int64_t num_recent, bool has_earlier,
                                  bool has_norm, bool for_backward) {
  const auto per_token = [&](bool wanted, std::optional<int64_t> copies = {}) {
    return for_backward && wanted ? empty_per_token(like, copies) : empty_result(like);
  };
  return {.x = empty_like_rows(like),
          .normalized = {},
          .scores = per_token(true, num_recent),
          .weights = per_token(true, num_recent),
          .earlier_weight = per_token(has_earlier),
          .rho = per_token(has_norm)};
}

void phase_two_forward(const PhaseTwoInputs& inputs, const std::vector<InverseRms>& inverse_rms,
                       const PhaseTwoResult& result) {
  const int64_t width = result.x.size(-1), tokens = tokens_of(result.x);
  const auto K = static_cast<int64_t>(inputs.recent.size());
  const bool formed = inputs.pending.defined();
  with_storage_type(result.x.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> recent(inputs.recent);
    Rows<Storage> single(at::TensorList{});
    const Tensor max = inputs.max.defined() ? inputs.max.contiguous() : Tensor(),
                 sum = inputs.sum.defined() ? inputs.sum.contiguous() : Tensor();
    const InverseRmsPointers<T> rms(inverse_rms);
    const kernel::PhaseTwoForward<Storage> op{
        .num_recent = K,
        .num_tokens = tokens,
        .width = width,
        .earlier_TD = single.add(inputs.earlier),
        .max_T = data<const T>(max),
        .sum_T = data<const T>(sum),
        .recent_K = recent.pointers(),
        .partial_TD = single.add(inputs.partial),
        .pending_TD = single.add(inputs.pending),
        .sum_TD = formed ? data<Storage>(inputs.recent.back()) : nullptr,
        .folded_query_D = data<const T>(inputs.query_D),
        .eps = inputs.eps,
        .gain_D = data<const T>(inputs.norm_gain_D),
        .norm_eps = inputs.norm_eps,
        .inverse_rms_K = rms.values.data(),
        .rms_known_K = rms.known.data(),
        .x_TD = data<Storage>(result.x),
        .normalized_TD = data<Storage>(result.normalized),
        .scores_KT = data<T>(result.scores),
        .weights_KT = data<T>(result.weights),
        .earlier_weight_T = data<T>(result.earlier_weight),
        .rho_T = data<T>(result.rho)};
    parallel_over_tokens(tokens, (K + 3) * width, [&](int64_t begin, int64_t end) {
      kernel::phase_two_forward(op, begin, end);
    });
  });
}

PhaseTwoGradients phase_two_backward(const PhaseTwoInputs& inputs, at::TensorList inverse_rms,
                                     bool has_earlier, const PhaseTwoResult& result,
                                     const Tensor& grad_x, const Tensor& grad_partial,
                                     const std::vector<GradientTarget>& grad_recent) {
  const bool has_norm = inputs.norm_gain_D.defined();
  const Tensor kept = (result.normalized.defined() ? result.normalized : result.x).contiguous();
  Tensor factor;
  if (has_norm) {
    factor = result.normalized.defined() ? at::ones_like(inputs.norm_gain_D)
                                         : at::reciprocal(inputs.norm_gain_D);
  }
  const int64_t width = kept.size(-1), tokens = tokens_of(kept);
  PhaseTwoGradients gradients;
  if (has_earlier) {
    gradients.earlier = empty_like_rows(kept);
    gradients.sum = empty_per_token(kept);
    gradients.scores = empty_per_token(kept);
  }
  Tensor sums;
  with_storage_type(kept.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const Rows<Storage> recent(inputs.recent);
    Rows<Storage> single(at::TensorList{});
    const std::vector<const T*> rms = pointers_to<T>(inverse_rms);
    const TargetPointers<Storage> targets(grad_recent);
    const kernel::PhaseTwoBackward<Storage> op{
        .num_recent = static_cast<int64_t>(inputs.recent.size()),
        .num_tokens = tokens,
        .width = width,
        .recent_K = recent.pointers(),
        .folded_query_D = data<const T>(inputs.query_D),
        .gain_D = data<const T>(inputs.norm_gain_D),
        .norm_eps = inputs.norm_eps,
        .inverse_rms_K = rms.data(),
        .scores_KT = data<const T>(result.scores),
        .weights_KT = data<const T>(result.weights),
        .earlier_weight_T = data<const T>(result.earlier_weight),
        .rho_T = data<const T>(result.rho),
        .kept_TD = single.add(kept),
        .kept_factor_D = data<const T>(factor),
        .grad_x_TD = single.add(grad_x),
        .grad_sum_TD = single.add(grad_partial),
        .grad_earlier_TD = data<Storage>(gradients.earlier),
        .grad_sum_T = data<T>(gradients.sum),
        .grad_recent_K = targets.gradients.data(),
        .accumulate_K = targets.accumulate.data(),
        .grad_scores_T = data<T>(gradients.scores),
        .grad_sums_K = targets.sums.data()};
    sums = sum_over_tokens(tokens, (has_norm ? 2 : 1) * width, compute_dtype(kept),
                           [&](int64_t begin, int64_t end, const Tensor& to) {
                             kernel::phase_two_backward(op, begin, end, data<T>(to));
                           });
  });
  gradients.query_D = sums.narrow(0, 0, width);
  if (has_norm) gradients.norm_gain_D = sums.narrow(0, width, width);
  return gradients;
}

}  // namespace attnres
