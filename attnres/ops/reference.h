// What the operations' formulas of one token share. Scalar is float, double, or
// std::complex<double>, whose imaginary part carries a derivative (the complex step: exact to
// rounding, with no step size to choose).
#pragma once

#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

namespace attnres::reference {

template <class Scalar>
using Vector = std::vector<Scalar>;
template <class Scalar>
using Matrix = std::vector<Vector<Scalar>>;

template <class Scalar>
Scalar dot(const Vector<Scalar>& a, const Vector<Scalar>& b) {
  Scalar sum = 0;
  for (size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

// 1 / RMS(v) with RMS(v) = sqrt(mean(v^2) + eps).
template <class Scalar>
Scalar inverse_rms(const Vector<Scalar>& v, double eps) {
  return Scalar(1) / std::sqrt(dot(v, v) / Scalar(v.size()) + Scalar(eps));
}

}  // namespace attnres::reference
