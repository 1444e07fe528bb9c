#include "attnres/ops/rms_norm/cuda.h"

#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

#include "attnres/ops/cuda_tensors.h"

namespace attnres {
namespace {

using at::Tensor;

void require_norm_kernel(bool has_one, const Tensor& rows) {
  require(has_one,
          "rms_norm: there is no CUDA kernel for rows of {}; it needs float32 or bfloat16 and a "
          "width that is a multiple of 8 up to 8192: take rms_norm_composed",
          shape_of(rows));
}

std::tuple<Tensor, Tensor, Tensor> norm_cuda(const Tensor& state,
                                             const std::optional<Tensor>& pending,
                                             const Tensor& gain, double eps, bool for_backward) {
  require_norm_kernel(has_cuda_kernel(state), state);
  const c10::cuda::CUDAGuard device(state.device());
  const Tensor sum = pending ? empty_like_rows(state) : empty_result(state),
               normalized = empty_like_rows(state),
               inverse_rms = for_backward ? empty_per_token(state) : empty_result(state);
  const Tensor state_rows = cuda_rows(state),
               pending_rows = pending ? cuda_rows(*pending) : Tensor(),
               gain_D = cuda_rows(gain.to(at::kFloat));
  with_cuda_type(state.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::RmsNormForward<Storage> op{
        .width = state.size(-1),
        .state_TD = data<const Storage>(state_rows),
        .pending_TD = data<const Storage>(pending_rows),
        .h_TD = pending ? data<Storage>(sum) : nullptr,
        .gain_D = data<const float>(gain_D),
        .eps = eps,
        .y_TD = data<Storage>(normalized),
        .rho_T = for_backward ? data<float>(inverse_rms) : nullptr};
    require_norm_kernel(gpu::rms_norm_on_gpu(op, tokens_of(state), cuda_stream()), state);
  });
  return {sum, normalized, inverse_rms};
}

std::tuple<Tensor, Tensor> norm_backward_cuda(const Tensor& grad_normalized,
                                              const std::optional<Tensor>& grad_sum,
                                              const Tensor& sum, const Tensor& gain,
                                              const Tensor& inverse_rms) {
  require_norm_kernel(has_cuda_kernel(sum), sum);
  const c10::cuda::CUDAGuard device(sum.device());
  const Tensor h = cuda_rows(sum), grad_y = cuda_rows(grad_normalized),
               later = grad_sum ? cuda_rows(*grad_sum) : Tensor(),
               gain_D = cuda_rows(gain.to(at::kFloat));
  const Tensor grad_h = empty_like_rows(h), grad_gain = at::empty_like(gain_D),
               memory = cuda_run_sums(gain_D, tokens_of(h), gain_D.numel(), gain_D.numel());
  with_cuda_type(h.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::RmsNormBackward<Storage> op{.width = h.size(-1),
                                              .h_TD = data<const Storage>(h),
                                              .rho_T = data<const float>(inverse_rms),
                                              .gain_D = data<const float>(gain_D),
                                              .grad_y_TD = data<const Storage>(grad_y),
                                              .grad_later_TD = data<const Storage>(later),
                                              .grad_h_TD = data<Storage>(grad_h)};
    require_norm_kernel(gpu::rms_norm_backward_on_gpu(op, tokens_of(h), data<float>(memory),
                                                      data<float>(grad_gain), cuda_stream()),
                        sum);
  });
  return {grad_h, grad_gain.to(gain.scalar_type())};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CUDA, m) {
  m.impl("add_rms_norm_fused", &norm_cuda);
  m.impl("add_rms_norm_fused_backward", &norm_backward_cuda);
}

}  // namespace attnres
