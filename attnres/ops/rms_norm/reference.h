// RMSNorm of one token, written as the formula.
#pragma once

#include "attnres/ops/reference.h"

namespace attnres::reference {

// y = gain * h / RMS(h).
template <class Scalar>
Vector<Scalar> rms_norm(const Vector<Scalar>& h, const Vector<Scalar>& gain, double eps) {
  const Scalar rho = inverse_rms(h, eps);
  Vector<Scalar> y;
  for (size_t k = 0; k < h.size(); ++k) y.push_back(gain[k] * h[k] * rho);
  return y;
}

template <class Scalar>
struct RmsNormGradients {
  Vector<Scalar> h_D, gain_D;
};

// The gradients of dy . y. With n = h / RMS(h) and u = gain * dy:
//   dh = (u - n (u . n) / D) / RMS(h),  dgain = dy * n
template <class Scalar>
RmsNormGradients<Scalar> rms_norm_backward(const Vector<Scalar>& h, const Vector<Scalar>& gain,
                                           double eps, const Vector<Scalar>& dy) {
  const Scalar rho = inverse_rms(h, eps);
  RmsNormGradients<Scalar> grad;
  Scalar along = 0;
  for (size_t k = 0; k < h.size(); ++k) along += gain[k] * dy[k] * h[k] * rho;
  for (size_t k = 0; k < h.size(); ++k) {
    const Scalar n = h[k] * rho;
    grad.h_D.push_back(rho * (gain[k] * dy[k] - n * along / Scalar(h.size())));
    grad.gain_D.push_back(dy[k] * n);
  }
  return grad;
}

}  // namespace attnres::reference
