#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "tests/depth/mechanisms/cross_layer.h"
#include "tests/larger.h"

namespace attnres::dca_test {
namespace {

using namespace testing;

constexpr int L = 12, J = L / 2;
constexpr int64_t d = 10;

Json dca(int64_t recent_layers) {
  return {{"type", "dca"}, {"recent_layers", recent_layers}};
}

// g = sum_i (b_i + relu(w . RMS(v_i))) * v_i
Vector generalized_residual(const Bench& bench, int site, const std::string& stream,
                            const std::vector<Vector>& sources) {
  const Vector bias = bench.values(site, (stream + "bias").c_str());
  const Vector score = bench.values(site, (stream + "score").c_str());
  Vector g(d, 0.0);
  for (size_t i = 0; i < sources.size(); ++i) {
    const double dynamic = std::max(0.0, dot(score, normed(sources[i], Vector(d, 1.0))));
    for (size_t c = 0; c < d; ++c) g[c] += (bias[i * d + c] + dynamic) * sources[i][c];
  }
  return g;
}

// The embedding, the sum of the outputs in the middle, the last k outputs; all of them for k = 0.
std::vector<Vector> sources_of(const Vector& embedding, const std::vector<Vector>& outputs,
                               size_t k) {
  std::vector<Vector> sources = {embedding};
  if (k == 0 || outputs.size() <= k) {
    sources.insert(sources.end(), outputs.begin(), outputs.end());
    return sources;
  }
  Vector middle(d, 0.0);
  for (size_t i = 0; i + k < outputs.size(); ++i) middle = plus(middle, outputs[i]);
  sources.push_back(middle);
  sources.insert(sources.end(), outputs.end() - k, outputs.end());
  return sources;
}

StreamReads reference(const Bench& bench, const Vector& embedding, size_t k) {
  std::vector<Vector> outputs;
  StreamReads reads;
  for (int j = 0; j < J; ++j) {
    const int site = 2 * j;
    const auto sources = sources_of(embedding, outputs, k);
    const Vector query = generalized_residual(bench, site, "query_", sources),
                 key = generalized_residual(bench, site, "key_", sources),
                 value = generalized_residual(bench, site, "value_", sources);
    reads.push_back({{"mixed", query}, {"key", key}, {"value", value}});
    const Vector o = attention(site, normed(query, bench.values(site, "input_norm")),
                               normed(key, bench.values(site, "key_input_norm")),
                               normed(value, bench.values(site, "value_input_norm")));
    const Vector r = plus(o, query);
    reads.push_back({{"mixed", r}});
    outputs.push_back(plus(o, sublayer(site + 1, normed(r, bench.values(site + 1, "input_norm")))));
  }
  reads.push_back(
      {{"mixed", generalized_residual(bench, L, "", sources_of(embedding, outputs, k))}});
  return reads;
}

class DcaAgainstEquations : public ::testing::TestWithParam<int> {};

TEST_P(DcaAgainstEquations, MixesAsTheReferenceDoes) {
  const int k = GetParam();
  Bench bench(dca(k), d, L);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, d);
  const StreamReads actual = stream_reads_by(bench, embedding, L);
  EXPECT_LT(largest_difference(actual, reference(bench, embedding, k)), 1e-12);
  // Negative control: the key's weights for the value.
  assign(bench.at(4, "value_bias"), bench.at(4, "key_bias").detach());
  EXPECT_GT(largest_difference(actual, reference(bench, embedding, k)), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(RecentLayers, DcaAgainstEquations, ::testing::Values(0, 1, 2, 4, J));

TEST(Dca, IsResidualWithoutScores) {
  const Vector embedding = random_vector("embedding", 1, d);
  Bench plain({{"type", "residual"}}, d, L);
  const StreamReads residual = stream_reads_by(plain, embedding, L);
  const auto distance = [&](Bench& bench) {
    const StreamReads reads = stream_reads_by(bench, embedding, L);
    double largest = 0;
    for (size_t l = 0; l <= L; ++l) {
      for (const auto& [stream, mixed] : reads[l]) {
        largest = larger(largest, largest_difference({mixed}, {residual[l].at("mixed")}));
      }
    }
    return largest;
  };
  for (const int k : {0, 2}) {
    Bench bench(dca(k), d, L);
    const double start = distance(bench);
    EXPECT_GT(start, 1e-6);
    EXPECT_LT(start, 0.1);
    for (int site = 0; site <= L; site += 2) {
      for (const char* role : {"query_score", "key_score", "value_score", "score"}) {
        if (bench.parameters.find(site, role)) bench.at(site, role).detach().zero_();
      }
    }
    EXPECT_LT(distance(bench), 1e-12);
  }
}

TEST(Dca, KeepsAFewSourcesWithRecentLayers) {
  const Bench bench(dca(2), d, L);
  DepthState state = bench.mixer->start(at::ones({1, d}, at::kDouble));
  std::vector<size_t> kept;
  for (int l = 0; l < L; ++l) {
    bench.mixer->read(state);
    bench.mixer->write(state, {at::ones({1, d}, at::kDouble)});
    kept.push_back(state.sealed.size() + state.open.size());
  }
  EXPECT_EQ(kept, (std::vector<size_t>{3, 2, 4, 3, 5, 4, 6, 4, 6, 4, 6, 4}));
}

TEST(Dca, IsLinearWithWeightsHeld) {
  for (const int k : {0, 2}) {
    Bench bench(dca(k), d, L);
    bench.perturb(0.3);
    EXPECT_LT(linearity_defect(bench, d, L, true, 3), 1e-10);
    EXPECT_GT(linearity_defect(bench, d, L, false, 3), 1e-3);
  }
}

TEST(Dca, RefusesImpossibleSettings) {
  EXPECT_NE(refusal_of(dca(-1)).find("recent_layers: expected 0 or more, got -1"),
            std::string::npos);
  EXPECT_NE(refusal_of(dca(5)).find("got 5"), std::string::npos);
  EXPECT_EQ(refusal_of({{"type", "dca"}}), "accepted");
}

}  // namespace
}  // namespace attnres::dca_test
