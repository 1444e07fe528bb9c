#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/rotary/rotary.h"

namespace attnres {

using at::Tensor;

Tensor rotary_composed(const Tensor& x_BTHK, const RotaryTable& table) {
  note_composed("rotary embedding", x_BTHK);
  const at::ScalarType dtype = x_BTHK.scalar_type();
  const Tensor cosine = table.cosine.to(dtype), sine = table.sine.to(dtype);
  const auto halves = x_BTHK.chunk(2, -1);
  const Tensor &a = halves[0], &b = halves[1];
  return at::cat({a * cosine - b * sine, b * cosine + a * sine}, -1);
}

}  // namespace attnres
