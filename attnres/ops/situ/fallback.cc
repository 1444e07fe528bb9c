#include <ATen/TensorOperators.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/situ/situ.h"
#include "attnres/ops/tensors.h"

namespace attnres {
namespace {

at::Tensor bounded(const at::Tensor& x, double bound) {
  return bound * at::tanh(x / bound);
}

}  // namespace

at::Tensor situ_composed(const at::Tensor& gate, const at::Tensor& up, double beta,
                         double linear_beta) {
  note_composed("situ", gate);
  const at::ScalarType wide = compute_dtype(gate);
  const at::Tensor g = gate.to(wide), u = up.to(wide);
  const at::Tensor y =
      bounded(g, beta) * at::sigmoid(g) * (linear_beta > 0 ? bounded(u, linear_beta) : u);
  return y.to(gate.scalar_type());
}

}  // namespace attnres
