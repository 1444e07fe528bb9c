#include <gtest/gtest.h>

#include "attnres/support/error.h"
#include "tests/depth/mechanisms/streams_reference.h"

namespace attnres::hyper_connections_test {
namespace {

using namespace testing;

constexpr int kSublayers = 6;
constexpr size_t kWidth = 10;

Json hyper_connections(int64_t streams) {
  return {{"type", "hyper_connections"}, {"streams", streams}};
}

// Stream i decides a_i, row i of A and b_i. `swapped` takes A by columns instead.
PlainMaps maps_of(const Bench& bench, int l, const Rows& H, bool swapped) {
  const size_t m = H.size();
  const Vector gain = bench.values(l, "stream_norm"), W = bench.values(l, "dynamic_maps"),
               mix = bench.values(l, "mix_map"), write = bench.values(l, "write_map"),
               read = l == 0 ? Vector(m, 0.0) : bench.values(l, "read_map");
  const double s = bench.values(l, "width_scale")[0], s_write = bench.values(l, "depth_scale")[0];
  PlainMaps maps = {Vector(m), Vector(m), identity(m)};
  for (size_t i = 0; i < m; ++i) {
    const Vector stream = normed(H[i], gain);
    const auto dynamic = [&](size_t row) {
      return std::tanh(dot(&W[row * kWidth], stream.data(), kWidth));
    };
    for (size_t j = 0; j < m; ++j) {
      const double weight = mix[i * m + j] + s * dynamic(j);  // of stream i in the new stream j
      (swapped ? maps.mix[i][j] : maps.mix[j][i]) = weight;
    }
    maps.write[i] = write[i] + s_write * dynamic(m);
    if (l > 0) maps.read[i] = read[i] + s * dynamic(m + 1);
  }
  return maps;
}

class HyperConnections : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Streams, HyperConnections, ::testing::Values(2, 3, 4));

TEST_P(HyperConnections, MixAsTheEquationsDo) {
  Bench bench(hyper_connections(GetParam()), kWidth, kSublayers);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const auto expected = [&](bool swapped) {
    return mixed_by_streams(bench, embedding, kSublayers, GetParam(),
                            [&](int l, const Rows& H) { return maps_of(bench, l, H, swapped); });
  };
  const auto actual = mixed_by(bench, embedding, kSublayers);
  EXPECT_LT(largest_difference(actual, expected(false)), 1e-12);
  EXPECT_GT(largest_difference(actual, expected(true)), 1e-3);
}

TEST_P(HyperConnections, StartAsTheResidualStream) {
  const auto m = static_cast<double>(GetParam());
  Bench bench(hyper_connections(GetParam()), kWidth, kSublayers);
  Bench residual({{"type", "residual"}}, kWidth, kSublayers);
  const Vector embedding = random_vector("embedding", 1, kWidth);
  std::vector<Vector> expected = mixed_by(residual, embedding, kSublayers);
  for (double& value : expected.back()) value *= m;  // the output is the sum of the streams
  EXPECT_LT(largest_difference(mixed_by(bench, embedding, kSublayers), expected), 1e-12);
  bench.at(3, "read_map").detach().mul_(-1);  // negative control
  EXPECT_GT(largest_difference(mixed_by(bench, embedding, kSublayers), expected), 1e-3);
  EXPECT_DOUBLE_EQ(bench.mixer->needs(2).output_init_gain, std::sqrt(m));
}

TEST(HyperConnectionsSettings, StreamsAreTwoToSixteen) {
  for (const int64_t streams : {1, 17, -4}) {
    try {
      Bench bench(hyper_connections(streams), kWidth, kSublayers);
      ADD_FAILURE() << streams;
    } catch (const UsageError& e) {
      EXPECT_NE(std::string(e.what()).find("streams: expected a whole number from 2 to 16"),
                std::string::npos);
    }
  }
}

}  // namespace
}  // namespace attnres::hyper_connections_test
