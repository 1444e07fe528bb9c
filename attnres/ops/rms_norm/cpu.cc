#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/rms_norm/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

std::tuple<Tensor, Tensor, Tensor> norm_cpu(const Tensor& state,
                                            const std::optional<Tensor>& pending,
                                            const Tensor& gain, double eps, bool for_backward) {
  const Tensor sum = empty_if_wanted(pending.has_value(), state),
               normalized = empty_like_rows(state),
               inverse_rms = for_backward ? empty_per_token(state) : empty_result(state);
  const Tensor state_rows = state.contiguous(), pending_rows = contiguous_if_given(pending);
  const Tensor gain_compute = gain.to(compute_dtype(state)).contiguous();
  const int64_t width = state.size(-1);
  with_storage_type(state.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::RmsNormForward<Storage> op{
        .width = width,
        .state_TD = data<const Storage>(state_rows),
        .pending_TD = data<const Storage>(pending_rows),
        .h_TD = pending ? data<Storage>(sum) : nullptr,
        .gain_D = data<const T>(gain_compute),
        .eps = eps,
        .y_TD = data<Storage>(normalized),
        .rho_T = for_backward ? data<T>(inverse_rms) : nullptr};
    parallel_over_tokens(tokens_of(state), 3 * width, [&](int64_t first, int64_t last) {
      kernel::rms_norm_forward(op, first, last);
    });
  });
  return {sum, normalized, inverse_rms};
}

std::tuple<Tensor, Tensor> norm_backward_cpu(const Tensor& grad_normalized,
                                             const std::optional<Tensor>& grad_sum,
                                             const Tensor& sum, const Tensor& gain,
                                             const Tensor& inverse_rms) {
  const Tensor h = sum.contiguous(), grad_y = grad_normalized.contiguous();
  const Tensor later = contiguous_if_given(grad_sum);
  const Tensor gain_compute = gain.to(inverse_rms.scalar_type()).contiguous();
  const Tensor grad_h = empty_like_rows(h);
  const int64_t width = h.size(-1);
  Tensor grad_gain;
  with_storage_type(h.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::RmsNormBackward<Storage> op{.width = width,
                                              .h_TD = data<const Storage>(h),
                                              .rho_T = data<const T>(inverse_rms),
                                              .gain_D = data<const T>(gain_compute),
                                              .grad_y_TD = data<const Storage>(grad_y),
                                              .grad_later_TD = data<const Storage>(later),
                                              .grad_h_TD = data<Storage>(grad_h)};
    grad_gain = sum_over_tokens(tokens_of(h), width, inverse_rms.scalar_type(),
                                [&](int64_t first, int64_t last, const Tensor& sums) {
                                  kernel::rms_norm_backward(op, first, last, data<T>(sums));
                                });
  });
  return {grad_h, grad_gain.to(gain.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("add_rms_norm_fused", &norm_cpu);
  m.impl("add_rms_norm_fused_backward", &norm_backward_cpu);
}

}  // namespace attnres
