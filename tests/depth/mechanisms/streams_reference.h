// Networks with m residual streams in plain loops over one token: what the stream mixers are
// compared with.
#pragma once

#include <ATen/ops/eye.h>
#include <ATen/ops/zeros.h>

#include <functional>

#include "tests/depth/plain_vectors.h"

namespace attnres::testing {

using Rows = std::vector<Vector>;  // the streams, or a small matrix

// h = sum_i read_i H_i;  H_j <- sum_i mix[j][i] H_i + write_j f(norm(h)).
struct PlainMaps {
  Vector read, write;
  Rows mix;
};

inline Rows identity(size_t m) {
  Rows rows(m, Vector(m, 0.0));
  for (size_t i = 0; i < m; ++i) rows[i][i] = 1;
  return rows;
}

inline double dot(const double* a, const double* b, size_t count) {
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

inline double logistic(double x) {
  return 1 / (1 + std::exp(-x));
}

// What sites 0 .. L read before their norms. The first site reads the embedding, the last the sum
// of the streams.
inline std::vector<Vector> mixed_by_streams(
    const Bench& bench, const Vector& embedding, int sublayers, size_t m,
    const std::function<PlainMaps(int site, const Rows& streams)>& maps) {
  const size_t d = embedding.size();
  Rows H(m, embedding);
  std::vector<Vector> mixed;
  for (int l = 0; l <= sublayers; ++l) {
    const bool output = l == sublayers;
    const PlainMaps now = output ? PlainMaps{} : maps(l, H);
    Vector h(d, 0.0);
    for (size_t c = 0; c < d; ++c) {
      for (size_t i = 0; i < m; ++i) h[c] += (output ? 1 : now.read[i]) * H[i][c];
    }
    if (l == 0) h = embedding;
    mixed.push_back(h);
    if (output) break;
    const Vector y = sublayer(l, normed(h, bench.values(l, "input_norm")));
    Rows next(m, Vector(d, 0.0));
    for (size_t j = 0; j < m; ++j) {
      for (size_t c = 0; c < d; ++c) {
        for (size_t i = 0; i < m; ++i) next[j][c] += now.mix[j][i] * H[i][c];
        next[j][c] += now.write[j] * y[c];
      }
    }
    H = next;
  }
  return mixed;
}

// The matrix A [m, m] that the streams of this site are mixed by when they are the unit vectors.
inline at::Tensor mix_of_unit_streams(const Bench& bench, int site, int64_t m, int64_t d) {
  DepthState state;
  state.site = site;
  state.open = {at::eye(m, d, at::kDouble).view({1, m, d})};
  bench.mixer->read(state);
  bench.mixer->write(state, {at::zeros({1, d}, at::kDouble)});
  return state.open[0].detach().view({m, d}).narrow(1, 0, m);
}

}  // namespace attnres::testing
