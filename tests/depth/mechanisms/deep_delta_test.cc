#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/support/error.h"
#include "tests/depth/mechanisms/streams_reference.h"

namespace attnres::deep_delta_test {
namespace {

using namespace testing;

constexpr int kSublayers = 5;
constexpr size_t kWidth = 8;

Json deep_delta(int64_t channels) {
  return {{"type", "deep_delta"}, {"value_channels", channels}};
}

// X is kept by channels: X[t] is column t. `additive` leaves the erasure out.
std::vector<Vector> expected_by(const Bench& bench, const Vector& embedding, size_t channels,
                                bool additive) {
  Rows X(channels, embedding);
  std::vector<Vector> mixed;
  for (int l = 0; l <= kSublayers; ++l) {
    const Vector r = channels == 1 ? Vector(kWidth, 1.0) : bench.values(l, "readout"),
                 gain = bench.values(l, "input_norm");
    Vector x(kWidth, 0.0);
    for (size_t c = 0; c < kWidth; ++c) {
      for (size_t t = 0; t < channels; ++t) x[c] += r[t * kWidth + c] * X[t][c];
    }
    mixed.push_back(x);
    if (l == kSublayers) break;
    const Vector u = normed(x, gain);
    Vector k = sublayer(l, u);
    const double length = std::sqrt(dot(k.data(), k.data(), kWidth) + 1e-10);
    for (double& value : k) value /= length;
    const Vector W = bench.values(l, "value"), w = bench.values(l, "gate");
    const double beta =
        2 * logistic(dot(w.data(), u.data(), kWidth) + bench.values(l, "gate_bias")[0]);
    for (size_t t = 0; t < channels; ++t) {
      const double v = dot(&W[t * kWidth], u.data(), kWidth);
      const double present = additive ? 0 : dot(k.data(), X[t].data(), kWidth);
      for (size_t c = 0; c < kWidth; ++c) X[t][c] += beta * k[c] * (v - present);
    }
  }
  return mixed;
}

class DeepDelta : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Channels, DeepDelta, ::testing::Values(1, 3, 4));

TEST_P(DeepDelta, RewritesAsTheEquationsDo) {
  Bench bench(deep_delta(GetParam()), kWidth, kSublayers);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const auto actual = mixed_by(bench, embedding, kSublayers);
  EXPECT_LT(largest_difference(actual, expected_by(bench, embedding, GetParam(), false)), 1e-12);
  EXPECT_GT(largest_difference(actual, expected_by(bench, embedding, GetParam(), true)), 1e-3);
}

// One write of y to a random state at a site; X before and after, [d_v, D].
std::pair<at::Tensor, at::Tensor> write_once(const Bench& bench, int64_t channels,
                                             const Vector& y) {
  DepthState state;
  state.site = 1;
  const auto d = static_cast<int64_t>(kWidth);
  const at::Tensor before =
      vector_tensor(random_vector("X", 0, kWidth * channels)).view({1, channels, d});
  state.open = {before};
  bench.mixer->read(state);
  bench.mixer->write(state, {vector_tensor(y).view({1, d})});
  return {before.view({channels, d}), state.open[0].detach().view({channels, d})};
}

TEST_P(DeepDelta, GateDecidesBetweenNothingReplacementAndReflection) {
  Bench bench(deep_delta(GetParam()), kWidth, kSublayers);
  bench.perturb(0.3);
  bench.at(1, "gate").detach().zero_();
  const Vector y = random_vector("y", 0, kWidth, 3);
  const at::Tensor k = vector_tensor(y) / std::sqrt(dot(y.data(), y.data(), kWidth));
  const auto with_gate_bias = [&](double bias) {
    bench.at(1, "gate_bias").detach().fill_(bias);
    return write_once(bench, GetParam(), y);
  };
  const auto [before, kept] = with_gate_bias(-1e4);
  EXPECT_TRUE(kept.equal(before));  // beta = 0
  // beta = 1: along k there is v now, and nothing else changed.
  const at::Tensor replaced = with_gate_bias(0).second;
  const at::Tensor along = before.matmul(k), across = before - at::outer(along, k);
  const at::Tensor v = replaced.matmul(k);
  EXPECT_LT((replaced - across - at::outer(v, k)).abs().max().item<double>(), 1e-9);
  EXPECT_GT((v - along).abs().max().item<double>(), 1e-3);
  // beta = 2: what is along k is reflected about v.
  const at::Tensor reflected = with_gate_bias(1e4).second;
  EXPECT_LT((reflected.matmul(k) - (2 * v - along)).abs().max().item<double>(), 1e-9);
}

// With parameters as they start beta is one, and v, of small weights, takes the place of what was
// along k: here all of the first channel.
TEST_P(DeepDelta, StartsWithAGateOfOne) {
  const Bench bench(deep_delta(GetParam()), kWidth, kSublayers);
  const Vector y = random_vector("X", 0, kWidth);
  const at::Tensor k = vector_tensor(y) / std::sqrt(dot(y.data(), y.data(), kWidth));
  const auto [before, after] = write_once(bench, GetParam(), y);
  EXPECT_GT(before[0].matmul(k).item<double>(), 1);
  EXPECT_LT(after.matmul(k).abs().max().item<double>(), 0.2);
  EXPECT_GT(after.matmul(k).abs().max().item<double>(), 1e-4);
}

TEST(DeepDeltaSettings, ChannelsAreOneToSixtyFour) {
  for (const int64_t channels : {0, 65}) {
    try {
      Bench bench(deep_delta(channels), kWidth, kSublayers);
      ADD_FAILURE() << channels;
    } catch (const UsageError& e) {
      EXPECT_NE(std::string(e.what()).find("value_channels: expected a whole number from 1 to 64"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace attnres::deep_delta_test
