#include <torch/library.h>

#include <tuple>

#include "attnres/ops/situ/kernel.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

using at::Tensor;

// Columns of a wider matrix are read where they are.
Tensor gates_as_rows(const Tensor& x) {
  const Tensor rows = x.dim() == 2 ? x : x.reshape({1, x.numel()});
  return rows.stride(1) == 1 ? rows : rows.contiguous();
}

template <class Storage>
kernel::Situ<Storage> situ_of(const Tensor& gates, const Tensor& ups, double beta,
                              double linear_beta) {
  using T = kernel::Compute<Storage>;
  return {.gate = data<const Storage>(gates),
          .up = data<const Storage>(ups),
          .width = gates.size(1),
          .gate_stride = gates.stride(0),
          .up_stride = ups.stride(0),
          .beta = static_cast<T>(beta),
          .linear_beta = static_cast<T>(linear_beta)};
}

Tensor situ_cpu(const Tensor& gate, const Tensor& up, double beta, double linear_beta) {
  const Tensor gates = gates_as_rows(gate), ups = gates_as_rows(up), y = empty_like_rows(gate);
  with_storage_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::SituForward<Storage> op{situ_of<Storage>(gates, ups, beta, linear_beta),
                                          data<Storage>(y)};
    parallel_over_tokens(
        y.numel(), 4, [&](int64_t first, int64_t last) { kernel::situ_forward(op, first, last); });
  });
  return y;
}

std::tuple<Tensor, Tensor> situ_backward_cpu(const Tensor& grad_y, const Tensor& gate,
                                             const Tensor& up, double beta, double linear_beta) {
  const Tensor gates = gates_as_rows(gate), ups = gates_as_rows(up), grads = grad_y.contiguous();
  const Tensor grad_gate = empty_like_rows(gate), grad_up = empty_like_rows(up);
  with_storage_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    const kernel::SituBackward<Storage> op{situ_of<Storage>(gates, ups, beta, linear_beta),
                                           data<const Storage>(grads), data<Storage>(grad_gate),
                                           data<Storage>(grad_up)};
    parallel_over_tokens(grads.numel(), 4, [&](int64_t first, int64_t last) {
      kernel::situ_backward(op, first, last);
    });
  });
  return {grad_gate, grad_up};
}

}  // namespace

TORCH_LIBRARY_IMPL(attnres, CPU, m) {
  m.impl("situ_fused", &situ_cpu);
  m.impl("situ_fused_backward", &situ_backward_cpu);
}

}  // namespace attnres
