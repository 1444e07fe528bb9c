#include <torch/library.h>

#include <tuple>

#include "attnres/ops/swiglu/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

Tensor swiglu_cpu(const Tensor& gate, const Tensor& up) {
  const Tensor gate_rows = gate.contiguous(), up_rows = up.contiguous(), y = empty_like_rows(gate);
  with_storage_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::SwigluForward<Storage> op{data<const Storage>(gate_rows),
                                            data<const Storage>(up_rows), data<Storage>(y)};
    parallel_over_tokens(y.numel(), 1, [&](int64_t first, int64_t last) {
      kernel::swiglu_forward(op, first, last);
    });
  });
  return y;
}

std::tuple<Tensor, Tensor> swiglu_backward_cpu(const Tensor& grad_y, const Tensor& gate,
                                               const Tensor& up) {
  const Tensor grad_rows = grad_y.contiguous(), gate_rows = gate.contiguous(),
               up_rows = up.contiguous();
  const Tensor grad_gate = empty_like_rows(gate), grad_up = empty_like_rows(up);
  with_storage_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::SwigluBackward<Storage> op{
        data<const Storage>(gate_rows), data<const Storage>(up_rows),
        data<const Storage>(grad_rows), data<Storage>(grad_gate), data<Storage>(grad_up)};
    parallel_over_tokens(grad_rows.numel(), 1, [&](int64_t first, int64_t last) {
      kernel::swiglu_backward(op, first, last);
    });
  });
  return {grad_gate, grad_up};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("swiglu_fused", &swiglu_cpu);
  m.impl("swiglu_fused_backward", &swiglu_backward_cpu);
}

}  // namespace attnres
