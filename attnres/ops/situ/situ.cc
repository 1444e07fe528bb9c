#include "attnres/ops/situ/situ.h"

#include <ATen/ATen.h>

#include "attnres/ops/situ/kernel.h"
#include "attnres/ops/tensors.h"
#include "attnres/ops/transformed.h"

namespace attnres {
namespace {

at::Tensor bounded(const at::Tensor& x, double bound) {
  return bound * at::tanh(x / bound);
}

at::Tensor situ_composed(const at::Tensor& gate, const at::Tensor& up, double beta,
                         double linear_beta) {
  const at::ScalarType wide = compute_dtype(gate);
  const at::Tensor g = gate.to(wide), u = up.to(wide);
  const at::Tensor y =
      bounded(g, beta) * at::sigmoid(g) * (linear_beta > 0 ? bounded(u, linear_beta) : u);
  return y.to(gate.scalar_type());
}

// Columns of a wider matrix are read where they are.
at::Tensor as_rows(const at::Tensor& x) {
  return x.dim() == 2 && x.stride(1) == 1 ? x : x.reshape({-1, x.size(-1)}).contiguous();
}

}  // namespace

at::Tensor situ(const at::Tensor& gate, const at::Tensor& up, double beta, double linear_beta) {
  require(gate.sizes() == up.sizes() && gate.scalar_type() == up.scalar_type(),
          "situ: gate is {}, up {}; they must be alike", shape_of(gate), shape_of(up));
  if (!has_kernel(gate) || gate.dim() == 0 || is_transformed({gate, up}) || records({gate, up})) {
    return situ_composed(gate, up, beta, linear_beta);
  }
  const at::Tensor gates = as_rows(gate), ups = as_rows(up), y = empty_like_rows(gate);
  with_storage_type(gate.scalar_type(), [&](auto storage) {
    using Storage = decltype(storage);
    using T = kernel::Compute<Storage>;
    const kernel::Situ<Storage> op{.gate = data<const Storage>(gates),
                                   .up = data<const Storage>(ups),
                                   .width = gates.size(1),
                                   .gate_stride = gates.stride(0),
                                   .up_stride = ups.stride(0),
                                   .beta = static_cast<T>(beta),
                                   .linear_beta = static_cast<T>(linear_beta),
                                   .y = data<Storage>(y)};
    parallel_over_tokens(y.numel(), 4,
                         [&](int64_t first, int64_t last) { kernel::situ(op, first, last); });
  });
  return y;
}

}  // namespace attnres
