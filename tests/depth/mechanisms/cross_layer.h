// What the tests of mechanisms share whose sites read earlier layers: vectors in plain loops, an
// attention that reads three inputs, and a check that held weights leave a linear map.
#pragma once

#include <map>
#include <string>

#include "attnres/support/error.h"
#include "tests/depth/mixer_bench.h"
#include "tests/depth/plain_vectors.h"
#include "tests/larger.h"

namespace attnres::testing {

inline Vector times(double factor, Vector a) {
  for (double& value : a) value *= factor;
  return a;
}

inline double dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
  return sum;
}

// sum_i weights[i] sources[i]
inline Vector weighted(const std::vector<Vector>& sources, const Vector& weights) {
  Vector sum(sources[0].size(), 0.0);
  for (size_t i = 0; i < sources.size(); ++i) sum = plus(sum, times(weights[i], sources[i]));
  return sum;
}

// Row `row` of numbers kept row by row.
inline Vector row_of(const Vector& numbers, size_t row, size_t width) {
  return Vector(numbers.begin() + row * width, numbers.begin() + (row + 1) * width);
}

// An attention of one token that tells its three inputs apart.
inline Vector attention(size_t l, const Vector& query, const Vector& key, const Vector& value) {
  Vector x(query.size());
  for (size_t c = 0; c < x.size(); ++c) {
    x[c] = query[c] - 0.7 * key[(c + 1) % x.size()] + 1.3 * value[(c + 2) % x.size()];
  }
  return sublayer(l, x);
}

// What each site of a network read, by stream: "mixed" everywhere, others where there are any.
using StreamReads = std::vector<std::map<std::string, Vector>>;

// As reads_by, of a network whose attentions read three inputs where the mixer gives them.
inline StreamReads stream_reads_by(Bench& bench, const Vector& embedding, int sublayers) {
  const int64_t d = static_cast<int64_t>(embedding.size());
  DepthState state = bench.mixer->start(vector_tensor(embedding).view({1, d}));
  MixingAnalysis analysis;
  state.analysis = &analysis;
  StreamReads reads;
  for (int l = 0; l <= sublayers; ++l) {
    const SublayerInput input = bench.mixer->read(state);
    const ReadTrace& trace = analysis.read;
    auto& read = reads.emplace_back();
    read["mixed"] = as_vector(trace.mixed);
    for (const auto& [name, mixed] : trace.other_streams) read[name] = as_vector(mixed);
    if (l == sublayers) break;
    const auto own = [&](const at::Tensor& x) { return as_vector(x.defined() ? x : input.x); };
    const Vector y = l % 2 == 0 ? attention(l, own(input.query), own(input.key), own(input.value))
                                : sublayer(l, as_vector(input.x));
    bench.mixer->write(state, {vector_tensor(y).view({1, d})});
  }
  return reads;
}

inline double largest_difference(const StreamReads& a, const StreamReads& b) {
  double largest = a.size() == b.size() ? 0 : 1e300;
  for (size_t l = 0; l < std::min(a.size(), b.size()); ++l) {
    if (a[l].size() != b[l].size()) return 1e300;
    for (const auto& [name, values] : a[l]) {
      if (!b[l].contains(name)) return 1e300;
      for (size_t c = 0; c < values.size(); ++c) {
        largest = larger(largest, std::abs(values[c] - b[l].at(name)[c]));
      }
    }
  }
  return largest;
}

// How far the mixed inputs of all sites and streams are from linear in the embedding and the
// outputs written, to autograd: the largest |u . h - sum_i (d(u . h) / dv_i) . v_i|, which a
// homogeneous linear map makes zero. Of two sequences of `tokens` tokens.
inline double linearity_defect(const Bench& bench, int64_t width, int sublayers, bool hold_weights,
                               int64_t tokens = 1) {
  const auto rows = [&](const char* name, int64_t index) {
    const Vector v = random_vector(name, index, static_cast<size_t>(2 * tokens * width));
    return vector_tensor(v).view({2 * tokens, width});
  };
  std::vector<at::Tensor> leaves = {rows("embedding", 0).set_requires_grad(true)};
  DepthState state = bench.mixer->start(leaves[0]);
  state.sequence.spans = std::make_shared<Spans>(Spans::whole(2, tokens));
  MixingAnalysis analysis = {.hold_weights = hold_weights};
  state.analysis = &analysis;
  double defect = 0;
  for (int l = 0; l <= sublayers; ++l) {
    bench.mixer->read(state);
    const ReadTrace& trace = analysis.read;
    std::vector<at::Tensor> streams = {trace.mixed};
    for (const auto& [name, mixed] : trace.other_streams) streams.push_back(mixed);
    for (const at::Tensor& h : streams) {
      if (!h.requires_grad()) return 1e300;
      const at::Tensor u = rows("u", l);
      h.backward(u, /*retain_graph=*/true);
      double sum = u.mul(h).sum().item<double>();
      for (const at::Tensor& leaf : leaves) {
        if (leaf.grad().defined()) sum -= leaf.grad().mul(leaf).sum().item<double>();
        leaf.mutable_grad().reset();
      }
      defect = larger(defect, std::abs(sum));
    }
    if (l == sublayers) break;
    leaves.push_back(rows("y", l).set_requires_grad(true));
    bench.mixer->write(state, {leaves.back()});
  }
  return defect;
}

// What the recipe is told about settings that cannot be.
inline std::string refusal_of(const Json& depth_mixing, int sublayers = 8) {
  try {
    Bench(depth_mixing, 4, sublayers);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

}  // namespace attnres::testing
