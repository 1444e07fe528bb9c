// Full and Block Attention Residuals in plain loops over one token, written from the equations of
// arXiv 2603.15031, section 3: what the mixers are compared with.
#pragma once

#include <cmath>
#include <functional>
#include <vector>

namespace attnres::reference {

using Vector = std::vector<double>;

inline double rms(const Vector& x, double eps) {
  double sum = 0;
  for (const double value : x) sum += value * value;
  return std::sqrt(sum / static_cast<double>(x.size()) + eps);
}

// sum_i softmax_i(w . (g * v_i / rms(v_i))) v_i
inline Vector attend(const std::vector<Vector>& sources, const Vector& w, const Vector& g,
                     double eps) {
  Vector weights;
  double total = 0;
  for (const Vector& v : sources) {
    double score = 0;
    for (size_t c = 0; c < v.size(); ++c) score += w[c] * g[c] * v[c] / rms(v, eps);
    weights.push_back(std::exp(score));
    total += weights.back();
  }
  Vector h(sources[0].size(), 0.0);
  for (size_t i = 0; i < sources.size(); ++i) {
    for (size_t c = 0; c < h.size(); ++c) h[c] += weights[i] / total * sources[i][c];
  }
  return h;
}

struct Site {
  Vector w, g, norm;  // pseudo-query, key-norm gain, input-norm gain
};

// The mixed inputs h_0 .. h_L of a network whose sublayer l maps norm_l(h_l) to f(l, x).
// block_size 0 stands for Full: every output is a source of its own.
inline std::vector<Vector> mixed_inputs(const Vector& embedding, const std::vector<Site>& sites,
                                        size_t block_size, double eps,
                                        const std::function<Vector(size_t, const Vector&)>& f) {
  const size_t L = sites.size() - 1;
  std::vector<Vector> outputs;  // f_0 .. f_{l-1}
  std::vector<Vector> mixed;
  for (size_t l = 0; l <= L; ++l) {
    std::vector<Vector> sources = {embedding};
    if (block_size == 0) {
      sources.insert(sources.end(), outputs.begin(), outputs.end());
    } else {
      // Every block, also the one at work, is the sum of what it has of its outputs (Eq. 5).
      for (size_t begin = 0; begin < outputs.size(); begin += block_size) {
        Vector sum(embedding.size(), 0.0);
        for (size_t j = begin; j < std::min(begin + block_size, outputs.size()); ++j) {
          for (size_t c = 0; c < sum.size(); ++c) sum[c] += outputs[j][c];
        }
        sources.push_back(sum);
      }
    }
    const Vector h = sources.size() == 1 ? embedding : attend(sources, sites[l].w, sites[l].g, eps);
    mixed.push_back(h);
    if (l == L) break;
    Vector x(h.size());
    for (size_t c = 0; c < h.size(); ++c) x[c] = sites[l].norm[c] * h[c] / rms(h, eps);
    outputs.push_back(f(l, x));
  }
  return mixed;
}

}  // namespace attnres::reference
