#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/depth/mechanisms/cross_layer.h"
#include "tests/depth/mechanisms/streams_reference.h"

namespace attnres::gated_residual_test {
namespace {

using namespace testing;
using ::testing::HasSubstr;

constexpr int L = 6;
constexpr int64_t d = 16;

Json gated(int64_t streams, int64_t rank) {
  return {{"type", "gated_residual"}, {"streams", streams}, {"rank", rank}};
}

double silu(double x) {
  return x * logistic(x);
}

// What is wrong in a reference, for negative controls.
enum class Mistake { none, undivided, gates_before_norm, norm_of_all, scalar_reads, sum_at_output };

// The norms of the streams, one after another.
Vector norms_of(const Bench& bench, int l, const Rows& R, Mistake mistake) {
  const Vector gain = bench.values(l, "stream_norm");
  Vector all, N;
  for (const Vector& stream : R) all.insert(all.end(), stream.begin(), stream.end());
  for (size_t i = 0; i < R.size(); ++i) {
    const double rms = reference::rms(mistake == Mistake::norm_of_all ? all : R[i], kEps);
    for (int64_t c = 0; c < d; ++c) N.push_back(gain[i * d + c] * R[i][c] / rms);
  }
  return N;
}

Vector mapped(const Vector& matrix, const Vector& x, double divisor,
              const std::function<double(double)>& f) {
  Vector y = times(matrix, x);
  for (double& value : y) value = f(value / divisor);
  return y;
}

std::vector<Vector> reference(const Bench& bench, const Vector& embedding, size_t n,
                              Mistake mistake = Mistake::none) {
  Rows R(n, embedding);
  std::vector<Vector> inputs;
  const double divisor = mistake == Mistake::undivided ? 1 : static_cast<double>(n);
  for (int l = 0; l <= L; ++l) {
    const Vector N = norms_of(bench, l, R, mistake);
    const Vector inner = mapped(bench.values(l, "gate_down"), N, divisor, silu);
    const Vector G = mapped(bench.values(l, "gate_up"), inner, 1, logistic);
    Vector x(d, 0.0);
    for (size_t i = 0; i < n; ++i) {
      for (int64_t c = 0; c < d; ++c) {
        const double gate = mistake == Mistake::scalar_reads ? G[i * d] : G[i * d + c];
        const double read = mistake == Mistake::gates_before_norm ? R[i][c] : N[i * d + c];
        x[c] += gate * read / static_cast<double>(n);
        if (mistake == Mistake::sum_at_output && l == L) x[c] += R[i][c];
      }
    }
    inputs.push_back(x);
    if (l == L) break;
    Vector s = mapped(bench.values(l, "write_gate"), N, divisor, logistic);
    const Vector y = sublayer(l, x);
    for (size_t i = 0; i < n; ++i) R[i] = plus(R[i], y, 2 * s[i]);
  }
  return inputs;
}

struct Case {
  int64_t streams, rank;
};
class GatedResidual : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Sizes, GatedResidual,
                         ::testing::Values(Case{4, 2}, Case{2, 5}, Case{3, 1}));

TEST_P(GatedResidual, ReadsAndWritesAsTheEquationsDo) {
  const auto [n, rank] = GetParam();
  Bench bench(gated(n, rank), d, L);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, d);
  const Reads actual = reads_by(bench, embedding, L);
  EXPECT_LT(largest_difference(actual.inputs, reference(bench, embedding, n)), 1e-12);
  EXPECT_EQ(largest_difference(actual.inputs, actual.mixed), 0);  // no norm follows
  for (const Mistake mistake :
       {Mistake::undivided, Mistake::gates_before_norm, Mistake::norm_of_all, Mistake::scalar_reads,
        Mistake::sum_at_output}) {
    EXPECT_GT(largest_difference(actual.inputs, reference(bench, embedding, n, mistake)), 1e-3)
        << static_cast<int>(mistake);
  }
}

TEST_P(GatedResidual, IsLinearWithWeightsHeld) {
  const auto [n, rank] = GetParam();
  Bench bench(gated(n, rank), d, L);
  bench.perturb(0.3);
  EXPECT_LT(linearity_defect(bench, d, L, true), 1e-11);
  EXPECT_GT(linearity_defect(bench, d, L, false), 1e-3);
}

// x = 1/2 RMS of the residual stream, but for small random numbers.
TEST(GatedResidual, StartsNearHalfTheNormOfTheResidualStream) {
  MixerShape shape = {.width = d, .sublayers = L, .init_std = 1e-9};
  Bench bench(gated(4, 2), shape);
  const Vector embedding = random_vector("embedding", 1, d);
  Vector h = embedding;
  const std::vector<Vector> inputs = reads_by(bench, embedding, L).inputs;
  for (int l = 0; l <= L; ++l) {
    const Vector x = normed(h, Vector(d, 0.5));
    EXPECT_LT(largest_difference({inputs[l]}, {x}), 1e-6) << l;
    if (l < L) h = plus(h, sublayer(l, x));
  }
}

TEST(GatedResidual, TellsItsStreamsApartFromTheStart) {
  Bench bench({{"type", "gated_residual"}}, d, L);
  DepthState state = bench.mixer->start(vector_tensor(random_vector("v", 0, d)).view({1, d}));
  bench.mixer->read(state);
  bench.mixer->write(state, {vector_tensor(random_vector("y", 0, d)).view({1, d})});
  EXPECT_GT((state.open[0].select(1, 0) - state.open[0].select(1, 1)).abs().max().item<double>(),
            1e-6);
}

TEST(GatedResidual, ItsRankIsAnEighthOfTheWidthUnlessToldOtherwise) {
  const auto rows = [](const Json& json, int64_t width) {
    return Bench(json, width, L).parameters.find(1, "gate_down")->tensor.size(0);
  };
  EXPECT_EQ(rows({{"type", "gated_residual"}}, 32), 4);
  EXPECT_EQ(rows({{"type", "gated_residual"}}, 4), 1);
  EXPECT_EQ(rows(gated(4, 7), 32), 7);
}

TEST(GatedResidual, WritesNothingAtTheOutput) {
  const Bench bench(gated(4, 2), d, L);
  EXPECT_EQ(bench.parameters.find(L, "write_gate"), nullptr);
  EXPECT_NE(bench.parameters.find(L, "gate_up"), nullptr);
  EXPECT_EQ(bench.parameters.find(0, "input_norm"), nullptr);
}

TEST(GatedResidual, RefusesImpossibleSettings) {
  EXPECT_THAT(refusal_of(gated(1, 2)), HasSubstr("expected a whole number from 2 to 16, got 1"));
  EXPECT_THAT(refusal_of(gated(17, 2)), HasSubstr("from 2 to 16"));
  EXPECT_THAT(refusal_of(gated(4, 0)), HasSubstr("rank: expected"));
  EXPECT_EQ(refusal_of(gated(16, 3)), "accepted");
}

}  // namespace
}  // namespace attnres::gated_residual_test
