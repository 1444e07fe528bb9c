#include "attnres/layers/rotary.h"

#include <ATen/ATen.h>

namespace attnres {

RotaryTable make_rotary_table(int64_t position, int64_t tokens, int64_t head_width, double theta,
                              at::ScalarType dtype) {
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor exponents = at::arange(0, head_width, 2, options) / double(head_width);
  const at::Tensor frequencies = at::pow(theta, -exponents);
  const at::Tensor positions = at::arange(position, position + tokens, options);
  const at::Tensor angles = at::outer(positions, frequencies).unsqueeze(1);
  return {angles.cos().to(dtype), angles.sin().to(dtype)};
}

at::Tensor apply_rotary(const at::Tensor& x_BTHD, const RotaryTable& table) {
  const auto halves = x_BTHD.chunk(2, -1);
  const at::Tensor &a = halves[0], &b = halves[1];
  return at::cat({a * table.cosine - b * table.sine, b * table.cosine + a * table.sine}, -1);
}

}  // namespace attnres
