// Rotary position embedding (Su et al., arXiv 2104.09864) in the half-split layout of Llama:
// channel c < K/2 of a head is paired with channel c + K/2 and turned by position * f_c, where f_c
// is theta^(-2c/K), or as a model's scaling makes it (layers/rope_scaling.h). On the CPU in
// float32, float64 and bfloat16 one kernel each way, which keeps nothing but the table; elsewhere
// composed of tensor operations. Differentiable in x, any number of times.
//
// In Python: torch.ops.attnres.rotary(x, cosine, sine).
#pragma once

#include <ATen/core/Tensor.h>

#include <compare>
#include <vector>

namespace attnres {

struct RotaryFrequencies {
  std::vector<double> of_pairs;  // f_c, K/2 of them, in radians a position
  double magnitude = 1;          // by which cosine and sine are multiplied

  auto operator<=>(const RotaryFrequencies&) const = default;
};

// The largest theta that is taken for meant.
inline constexpr double kLargestTheta = 1e12;

// theta^(-2c/K) for c < K/2.
RotaryFrequencies rotary_frequencies(int64_t head_width, double theta);

struct RotaryTable {
  at::Tensor cosine, sine;  // [T, 1, K/2], float32, or float64 for float64
};

// The table of positions position .. position + tokens - 1, for an x with these options: computed
// in float64, number by number, so that a position has the same bits in every table.
RotaryTable rotary_table(int64_t position, int64_t tokens, const RotaryFrequencies& frequencies,
                         const at::TensorOptions& of_x);

// x_BTHK, turned; the table has its T tokens, and is on x's device in its compute dtype. Works for
// any number of heads. Throws Error where the inputs are not as said.
at::Tensor apply_rotary(const at::Tensor& x_BTHK, const RotaryTable& table);

// The same composed of tensor operations: any device and dtype.
at::Tensor rotary_composed(const at::Tensor& x_BTHK, const RotaryTable& table);

}  // namespace attnres
