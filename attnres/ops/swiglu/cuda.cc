#include "attnres/ops/swiglu/cuda.h"

#include <c10/cuda/CUDAGuard.h>
#include <torch/library.h>

#include <tuple>

#include "attnres/ops/cuda_tensors.h"

namespace attnres {
namespace {

using at::Tensor;

void require_swiglu_kernel(bool has_one, const Tensor& gate) {
  require(has_one,
          "swiglu: there is no CUDA kernel for {} numbers; they must be a multiple of 8: take "
          "swiglu_composed",
          gate.numel());
}

Tensor swiglu_cuda(const Tensor& gate, const Tensor& up) {
  const c10::cuda::CUDAGuard device(gate.device());
  const Tensor gate_rows = cuda_rows(gate), up_rows = cuda_rows(up), y = empty_like_rows(gate);
  with_cuda_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::SwigluForward<Storage> op{data<const Storage>(gate_rows),
                                            data<const Storage>(up_rows), data<Storage>(y)};
    require_swiglu_kernel(gpu::swiglu_on_gpu(op, y.numel(), cuda_stream()), gate);
  });
  return y;
}

std::tuple<Tensor, Tensor> swiglu_backward_cuda(const Tensor& grad_y, const Tensor& gate,
                                                const Tensor& up) {
  const c10::cuda::CUDAGuard device(gate.device());
  const Tensor grad_rows = cuda_rows(grad_y), gate_rows = cuda_rows(gate), up_rows = cuda_rows(up);
  const Tensor grad_gate = empty_like_rows(gate), grad_up = empty_like_rows(up);
  with_cuda_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::SwigluBackward<Storage> op{
        data<const Storage>(gate_rows), data<const Storage>(up_rows),
        data<const Storage>(grad_rows), data<Storage>(grad_gate), data<Storage>(grad_up)};
    require_swiglu_kernel(gpu::swiglu_on_gpu(op, gate.numel(), cuda_stream()), gate);
  });
  return {grad_gate, grad_up};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CUDA, m) {
  m.impl("swiglu_fused", &swiglu_cuda);
  m.impl("swiglu_fused_backward", &swiglu_backward_cuda);
}

}  // namespace attnres
