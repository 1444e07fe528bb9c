// Depth attention of one token, written as the formula.
#pragma once

#include <algorithm>
#include <cmath>
#include <complex>
#include <cstddef>
#include <vector>

#include "attnres/ops/reference.h"

namespace attnres::reference {

template <class Scalar>
struct DepthAttention {
  Vector<Scalar> h_D;
  Vector<Scalar> alpha_N;        // depth weights
  Vector<Scalar> inverse_rms_N;  // of the sources
};

template <class Scalar>
struct DepthAttentionGradients {
  Matrix<Scalar> sources_ND;
  Vector<Scalar> query_D;
  Vector<Scalar> key_gain_D;
};

template <class Scalar>
Vector<Scalar> softmax(const Vector<Scalar>& s) {
  double max = -INFINITY;
  for (const Scalar& value : s) max = std::max<double>(max, std::real(value));
  Vector<Scalar> alpha;
  Scalar sum = 0;
  for (const Scalar& value : s) sum += alpha.emplace_back(std::exp(value - Scalar(max)));
  for (Scalar& value : alpha) value /= sum;
  return alpha;
}

// alpha = softmax_i(w . (g * v_i / RMS(v_i))),  h = sum_i alpha_i v_i.
template <class Scalar>
DepthAttention<Scalar> depth_attention(const Matrix<Scalar>& v, const Vector<Scalar>& w,
                                       const Vector<Scalar>& g, double eps) {
  const size_t N = v.size(), D = w.size();
  DepthAttention<Scalar> result;
  Vector<Scalar> score(N);
  for (size_t i = 0; i < N; ++i) {
    const Scalar r = result.inverse_rms_N.emplace_back(inverse_rms(v[i], eps));
    for (size_t k = 0; k < D; ++k) score[i] += w[k] * (g[k] * v[i][k] * r);
  }
  result.alpha_N = softmax(score);
  result.h_D.resize(D);
  for (size_t i = 0; i < N; ++i) {
    for (size_t k = 0; k < D; ++k) result.h_D[k] += result.alpha_N[i] * v[i][k];
  }
  return result;
}

// The gradients of dh . h + dalpha . alpha. With k_i = g * v_i r_i and r_i = 1 / RMS(v_i):
//   ds_i = alpha_i (da_i - sum_j alpha_j da_j),  da_i = dh . v_i + dalpha_i
//   dw = sum_i ds_i k_i,  dg = sum_i ds_i w * v_i r_i
//   dv_i = alpha_i dh + ds_i r_i (w * g - s_i r_i v_i / D)
template <class Scalar>
DepthAttentionGradients<Scalar> depth_attention_backward(const Matrix<Scalar>& v,
                                                         const Vector<Scalar>& w,
                                                         const Vector<Scalar>& g, double eps,
                                                         const Vector<Scalar>& dh,
                                                         const Vector<Scalar>& dalpha) {
  const size_t N = v.size(), D = w.size();
  const auto [h, alpha, r] = depth_attention(v, w, g, eps);
  Vector<Scalar> da(N);
  for (size_t i = 0; i < N; ++i) da[i] = dot(dh, v[i]) + dalpha[i];
  const Scalar mean = dot(alpha, da);

  DepthAttentionGradients<Scalar> grad{Matrix<Scalar>(N, Vector<Scalar>(D)), Vector<Scalar>(D),
                                       Vector<Scalar>(D)};
  for (size_t i = 0; i < N; ++i) {
    const Scalar ds = alpha[i] * (da[i] - mean);
    Scalar score = 0;
    for (size_t k = 0; k < D; ++k) score += w[k] * g[k] * v[i][k] * r[i];
    for (size_t k = 0; k < D; ++k) {
      grad.query_D[k] += ds * g[k] * v[i][k] * r[i];
      grad.key_gain_D[k] += ds * w[k] * v[i][k] * r[i];
      grad.sources_ND[i][k] =
          alpha[i] * dh[k] + ds * r[i] * (w[k] * g[k] - score * r[i] * v[i][k] / Scalar(D));
    }
  }
  return grad;
}

}  // namespace attnres::reference
