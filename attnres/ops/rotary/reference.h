// Rotary position embedding of one head, half-split, written as the formula.
#pragma once

#include <cmath>
#include <vector>

namespace attnres::reference {

// Channels c and c + K/2 are a pair, turned by position * theta^(-2c/K); the gradient of an input
// is the gradient of the output turned by -position.
template <class Scalar>
std::vector<Scalar> rotary(const std::vector<Scalar>& x, double position, double theta) {
  const size_t half = x.size() / 2;
  std::vector<Scalar> y(x.size());
  for (size_t c = 0; c < half; ++c) {
    const Scalar exponent = -2 * Scalar(c) / Scalar(x.size());
    const Scalar angle = Scalar(position) * std::pow(Scalar(theta), exponent);
    y[c] = x[c] * std::cos(angle) - x[c + half] * std::sin(angle);
    y[c + half] = x[c + half] * std::cos(angle) + x[c] * std::sin(angle);
  }
  return y;
}

}  // namespace attnres::reference
