// One mixer alone in float64, on one token, with sublayers that are known functions: for comparing
// it with equations written out in plain loops.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/depth/depth_mixing.h"
#include "attnres/depth/mixing_analysis.h"
#include "attnres/support/random.h"
#include "tests/larger.h"
#include "tests/noise.h"

namespace attnres::testing {

using Vector = std::vector<double>;

constexpr double kEps = 1e-6;

struct Bench {
  Bench(const Json& depth_mixing, int64_t width, int sublayers, double eps = kEps)
      : Bench(depth_mixing, MixerShape{.width = width, .sublayers = sublayers, .norm_eps = eps}) {}
  Bench(const Json& depth_mixing, const MixerShape& shape)
      : parameters(at::kDouble, 7),
        mixer(DepthMixing(depth_mixing, shape).make_mixer(shape, parameters)) {}

  at::Tensor& at(int site, const char* role) {
    return const_cast<at::Tensor&>(parameters.find(site, role)->tensor);
  }

  // A parameter's numbers, row by row.
  std::vector<double> values(int site, const char* role) const {
    const at::Tensor flat = parameters.find(site, role)->tensor.detach().contiguous();
    return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
  }

  // Adds normal noise to every parameter, so that all of them matter.
  void perturb(double scale) {
    for (const Parameter& p : parameters.all()) add_noise(p, scale);
  }

  ParameterRegistry parameters;
  std::unique_ptr<DepthMixer> mixer;
};

inline void assign(const at::Tensor& parameter, const at::Tensor& value) {
  parameter.detach().copy_(value);
}

inline at::Tensor vector_tensor(const Vector& v) {
  return at::tensor(at::ArrayRef<double>(v), at::kDouble);
}

inline Vector as_vector(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.detach().contiguous();
  return {flat.data_ptr<double>(), flat.data_ptr<double>() + flat.numel()};
}

inline Vector random_vector(const char* name, int64_t index, size_t width, double scale = 1,
                            double offset = 0) {
  const RandomStream random(static_cast<uint64_t>(index), name);
  Vector v(width);
  for (size_t c = 0; c < width; ++c) v[c] = offset + scale * random.normal(c);
  return v;
}

// A sublayer that is neither linear nor the same at two sites.
inline Vector sublayer(size_t l, const Vector& x) {
  Vector y(x.size());
  for (size_t c = 0; c < x.size(); ++c) {
    const double shifted = x[(c + l + 1) % x.size()];
    y[c] = (1 + 0.2 * static_cast<double>(l)) * std::sin(static_cast<double>(l) + 0.5 * shifted);
  }
  return y;
}

// What every site 0 .. L read of a network: mixed, before its norm, and as the sublayer's input.
struct Reads {
  std::vector<Vector> mixed, inputs;
};

inline Reads reads_by(Bench& bench, const Vector& embedding, int sublayers) {
  const int64_t d = static_cast<int64_t>(embedding.size());
  DepthState state = bench.mixer->start(vector_tensor(embedding).view({1, d}));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  Reads reads;
  for (int l = 0; l <= sublayers; ++l) {
    const Vector x = as_vector(bench.mixer->read(state).x);
    const ReadTrace& trace = analysis.read;
    reads.mixed.push_back(as_vector(trace.mixed));
    reads.inputs.push_back(x);
    if (l < sublayers) {
      bench.mixer->write(state, {vector_tensor(sublayer(l, x)).view({1, d})});
    }
  }
  return reads;
}

inline std::vector<Vector> mixed_by(Bench& bench, const Vector& embedding, int sublayers) {
  return reads_by(bench, embedding, sublayers).mixed;
}

inline double largest_difference(const std::vector<Vector>& a, const std::vector<Vector>& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (size_t l = 0; l < std::min(a.size(), b.size()); ++l) {
    if (a[l].size() != b[l].size()) return 1e300;
    for (size_t c = 0; c < a[l].size(); ++c) {
      largest = larger(largest, std::abs(a[l][c] - b[l][c]));
    }
  }
  return largest;
}

}  // namespace attnres::testing
