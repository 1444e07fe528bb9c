// The sites of a group at one token, written as the formulas: depth attention and the sublayer's
// input norm, site after site. The two-phase schedule must give the same.
#pragma once

#include "attnres/ops/depth_attention/reference.h"
#include "attnres/ops/rms_norm/reference.h"

namespace attnres::reference {

// Site s reads the sources and, of the outputs 0 .. s - 1 of the sublayers before it in the group,
// either their sum (Block) or each one (Full).
template <class Scalar>
struct Sites {
  Matrix<Scalar> sources_ND, outputs_SD;
  bool sums;
  Matrix<Scalar> query_SD, key_gain_SD, norm_gain_SD;
  double eps, norm_eps;

  Matrix<Scalar> read(size_t site) const {
    Matrix<Scalar> v = sources_ND;
    if (!sums) v.insert(v.end(), outputs_SD.begin(), outputs_SD.begin() + site);
    if (!sums || site == 0) return v;
    Vector<Scalar>& partial = v.emplace_back(outputs_SD[0]);
    for (size_t i = 1; i < site; ++i) {
      for (size_t k = 0; k < partial.size(); ++k) partial[k] += outputs_SD[i][k];
    }
    return v;
  }
};

// The sites' normalised inputs.
template <class Scalar>
Matrix<Scalar> site_inputs(const Sites<Scalar>& sites) {
  Matrix<Scalar> x;
  for (size_t s = 0; s < sites.query_SD.size(); ++s) {
    const auto h =
        depth_attention(sites.read(s), sites.query_SD[s], sites.key_gain_SD[s], sites.eps).h_D;
    x.push_back(rms_norm(h, sites.norm_gain_SD[s], sites.norm_eps));
  }
  return x;
}

// The gradients of sum_s dx_s . x_s, in the fields of what they are gradients of.
template <class Scalar>
Sites<Scalar> site_inputs_backward(const Sites<Scalar>& sites, const Matrix<Scalar>& dx_SD) {
  const size_t N = sites.sources_ND.size(), S = sites.query_SD.size();
  const size_t D = sites.query_SD[0].size();
  const auto zeros = [&](size_t rows) { return Matrix<Scalar>(rows, Vector<Scalar>(D)); };
  Sites<Scalar> grad = {.sources_ND = zeros(N),
                        .outputs_SD = zeros(sites.outputs_SD.size()),
                        .sums = sites.sums,
                        .query_SD = {},
                        .key_gain_SD = {},
                        .norm_gain_SD = {},
                        .eps = sites.eps,
                        .norm_eps = sites.norm_eps};
  const auto add = [&](Vector<Scalar>& to, const Vector<Scalar>& what) {
    for (size_t k = 0; k < D; ++k) to[k] += what[k];
  };
  for (size_t s = 0; s < S; ++s) {
    const Matrix<Scalar> v = sites.read(s);
    const Vector<Scalar>&w = sites.query_SD[s], &g = sites.key_gain_SD[s];
    const auto norm = rms_norm_backward(depth_attention(v, w, g, sites.eps).h_D,
                                        sites.norm_gain_SD[s], sites.norm_eps, dx_SD[s]);
    const Vector<Scalar> no_dalpha(v.size());
    const auto depth = depth_attention_backward(v, w, g, sites.eps, norm.h_D, no_dalpha);
    grad.norm_gain_SD.push_back(norm.gain_D);
    grad.query_SD.push_back(depth.query_D);
    grad.key_gain_SD.push_back(depth.key_gain_D);
    for (size_t n = 0; n < N; ++n) add(grad.sources_ND[n], depth.sources_ND[n]);
    for (size_t i = 0; i < s; ++i) {
      add(grad.outputs_SD[i], depth.sources_ND[sites.sums ? N : N + i]);
    }
  }
  return grad;
}

}  // namespace attnres::reference
