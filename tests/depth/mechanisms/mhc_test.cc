// mhc, mhc_lite and hc_identity, which differ only in how the streams mix among themselves.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "attnres/support/error.h"
#include "tests/depth/mechanisms/streams_reference.h"

namespace attnres::mhc_test {
namespace {

using namespace testing;

constexpr int kSublayers = 6;
constexpr size_t kWidth = 10;

// A from its logits, m x m or m!.
using MatrixOf = std::function<Rows(const Vector& logits, size_t m)>;

Rows sinkhorn(const Vector& logits, size_t m, int rounds = 20) {
  Rows A(m, Vector(m));
  for (size_t i = 0; i < m * m; ++i) A[i / m][i % m] = std::exp(logits[i]);
  for (int round = 0; round < rounds; ++round) {
    for (size_t j = 0; j < m; ++j) {
      double sum = 0;
      for (size_t i = 0; i < m; ++i) sum += A[i][j];
      for (size_t i = 0; i < m; ++i) A[i][j] /= sum;
    }
    for (Vector& row : A) {
      const double sum = std::accumulate(row.begin(), row.end(), 0.0);
      for (double& value : row) value /= sum;
    }
  }
  return A;
}

Rows mix_of_permutations(const Vector& logits, size_t m) {
  double total = 0;
  for (const double logit : logits) total += std::exp(logit);
  std::vector<size_t> permutation(m);
  std::iota(permutation.begin(), permutation.end(), 0);
  Rows A(m, Vector(m, 0.0));
  for (const double logit : logits) {
    for (size_t i = 0; i < m; ++i) A[i][permutation[i]] += std::exp(logit) / total;
    std::next_permutation(permutation.begin(), permutation.end());
  }
  return A;
}

Rows no_mixing(const Vector&, size_t m) {
  return identity(m);
}

PlainMaps maps_of(const Bench& bench, int l, const Rows& H, const MatrixOf& matrix_of) {
  const size_t m = H.size();
  Vector z;
  for (const Vector& stream : H) z.insert(z.end(), stream.begin(), stream.end());
  const double rms = reference::rms(z, kEps);
  for (double& value : z) value /= rms;
  const Vector P = bench.values(l, "dynamic_maps"), c = bench.values(l, "static_maps"),
               s = bench.values(l, "map_scales");
  const auto logits = [&](size_t first, size_t count, size_t map) {
    Vector result;
    for (size_t row = first; row < first + count; ++row) {
      result.push_back(s[map] * dot(&P[row * z.size()], z.data(), z.size()) + c[row]);
    }
    return result;
  };
  PlainMaps maps = {Vector(m), logits(0, m, 0), identity(m)};
  for (double& b : maps.write) b = 2 * logistic(b);
  if (l > 0) {
    maps.read = logits(m, m, 1);
    for (double& a : maps.read) a = logistic(a);
  }
  if (c.size() > 2 * m) maps.mix = matrix_of(logits(2 * m, c.size() - 2 * m, 2), m);
  return maps;
}

struct Case {
  const char* name;
  int64_t streams;
  MatrixOf matrix_of;
  MatrixOf other;  // negative control
  int64_t mix_logits;
  // The last sublayer with an A. That of mhc_lite does not change the sum of the streams.
  int last_mixed = kSublayers - 2;

  Json json() const { return {{"type", name}, {"streams", streams}}; }
};

class ConstrainedStreams : public ::testing::TestWithParam<Case> {};

const MatrixOf kSinkhorn = [](const Vector& logits, size_t m) { return sinkhorn(logits, m); };
const MatrixOf kOneRound = [](const Vector& logits, size_t m) { return sinkhorn(logits, m, 1); };
const MatrixOf kReversed = [](const Vector& logits, size_t m) {
  return mix_of_permutations(Vector(logits.rbegin(), logits.rend()), m);
};

INSTANTIATE_TEST_SUITE_P(Mechanisms, ConstrainedStreams,
                         ::testing::Values(Case{"mhc", 4, kSinkhorn, kOneRound, 16, kSublayers - 1},
                                           Case{"mhc", 3, kSinkhorn, no_mixing, 9, kSublayers - 1},
                                           Case{"mhc_lite", 4, mix_of_permutations, kReversed, 24},
                                           Case{"mhc_lite", 2, mix_of_permutations, kReversed, 2},
                                           Case{"hc_identity", 4, no_mixing, {}, 0}),
                         [](const auto& info) {
                           return fmt::format("{}_{}", info.param.name, info.param.streams);
                         });

// Mixing that matters, and converges: logits of A of standard deviation one.
void randomise_mixing(Bench& bench, const Case& c) {
  for (int l = 1; l <= c.last_mixed && c.mix_logits > 0; ++l) {
    const at::Tensor logits =
        bench.at(l, "static_maps").detach().narrow(0, 2 * c.streams, c.mix_logits);
    assign(logits, vector_tensor(random_vector("logits", l, c.mix_logits)));
  }
}

TEST_P(ConstrainedStreams, MixAsTheEquationsDo) {
  const Case& c = GetParam();
  Bench bench(c.json(), kWidth, kSublayers);
  bench.perturb(0.3);
  randomise_mixing(bench, c);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const auto expected = [&](const MatrixOf& matrix_of) {
    return mixed_by_streams(bench, embedding, kSublayers, c.streams,
                            [&](int l, const Rows& H) { return maps_of(bench, l, H, matrix_of); });
  };
  const auto actual = mixed_by(bench, embedding, kSublayers);
  EXPECT_LT(largest_difference(actual, expected(c.matrix_of)), 1e-12);
  if (c.other) {
    EXPECT_GT(largest_difference(actual, expected(c.other)), 1e-4);
  }
}

TEST_P(ConstrainedStreams, MixByAMatrixWhoseRowsAndColumnsSumToOne) {
  const Case& c = GetParam();
  Bench bench(c.json(), kWidth, kSublayers);
  bench.perturb(0.3);
  randomise_mixing(bench, c);
  for (int l = 0; l < kSublayers; ++l) {
    const at::Tensor A = mix_of_unit_streams(bench, l, c.streams, kWidth);
    EXPECT_GE(A.min().item<double>(), 0) << l;
    EXPECT_LT((A.sum(0) - 1).abs().max().item<double>(), 1e-6) << l;
    EXPECT_LT((A.sum(1) - 1).abs().max().item<double>(), 1e-12) << l;
    const bool mixes = c.mix_logits > 0 && l > 0 && l <= c.last_mixed;
    EXPECT_EQ((A - at::eye(c.streams, at::kDouble)).abs().max().item<double>() > 1e-5, mixes) << l;
  }
}

// What the mixer itself does: what it reads of streams that are unit vectors, and how much each of
// them gets of an output in a channel of its own.
struct Gates {
  Vector read, write;
};
Gates gates_at(const Bench& bench, int site, int64_t streams) {
  DepthState state;
  MixingAnalysis analysis;
  state.analysis = &analysis;
  state.site = site;
  state.open = {at::eye(streams, kWidth, at::kDouble).view({1, streams, kWidth})};
  bench.mixer->read(state);
  const ReadTrace& trace = analysis.read;
  const at::Tensor y = at::zeros({1, kWidth}, at::kDouble);
  y.select(-1, streams).fill_(1);
  bench.mixer->write(state, {y});
  return {as_vector(trace.mixed.narrow(-1, 0, streams)),
          as_vector(state.open[0].select(-1, streams))};
}

TEST_P(ConstrainedStreams, StartNearTheIdentityWithOneStreamAhead) {
  const Case& c = GetParam();
  const Bench bench(c.json(), kWidth, kSublayers);
  for (int l = 0; l < kSublayers; ++l) {
    const at::Tensor A = mix_of_unit_streams(bench, l, c.streams, kWidth);
    EXPECT_LT((A - at::eye(c.streams, at::kDouble)).abs().max().item<double>(), 1e-2) << l;
    // P begins at zero and has a gradient only while s is not.
    for (const double scale : bench.values(l, "map_scales")) EXPECT_EQ(scale, 0.01) << l;
    const auto [read, write] = gates_at(bench, l, c.streams);
    for (int64_t i = 0; i < c.streams; ++i) {
      const double gate = logistic(i == l % c.streams ? 1 : -1);
      EXPECT_NEAR(write[i], 2 * gate, 1e-12) << l << ", stream " << i;
      if (l > 0) {
        EXPECT_NEAR(read[i], gate, 1e-12) << l << ", stream " << i;
      }
    }
  }
}

// The matrix has no effect where all streams are equal, nor on their sum, if its columns sum to
// one.
TEST_P(ConstrainedStreams, OwnNoParameterWithoutEffect) {
  const Case& c = GetParam();
  const Bench bench(c.json(), kWidth, kSublayers);
  const auto rows = [&](int l) { return bench.parameters.find(l, "static_maps")->tensor.size(0); };
  EXPECT_EQ(rows(0), c.streams);
  EXPECT_EQ(rows(1), 2 * c.streams + c.mix_logits);
  EXPECT_EQ(rows(kSublayers - 1),
            2 * c.streams + (c.last_mixed == kSublayers - 1 ? c.mix_logits : 0));
}

// After few rounds the columns do not sum to one, and the output reads the streams' sum.
TEST(Mhc, MixesAfterTheLastSublayer) {
  Bench bench({{"type", "mhc"}, {"streams", 3}, {"sinkhorn_rounds", 2}}, kWidth, 2);
  bench.perturb(0.3);
  assign(bench.at(1, "static_maps").detach().narrow(0, 6, 9),
         vector_tensor(random_vector("logits", 1, 9, 3)));
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const auto expected = [&](const MatrixOf& matrix_of) {
    return mixed_by_streams(bench, embedding, 2, 3,
                            [&](int l, const Rows& H) { return maps_of(bench, l, H, matrix_of); });
  };
  const auto actual = mixed_by(bench, embedding, 2);
  const auto two_rounds = [](const Vector& logits, size_t m) { return sinkhorn(logits, m, 2); };
  EXPECT_LT(largest_difference(actual, expected(two_rounds)), 1e-12);
  EXPECT_GT(largest_difference(actual, expected(no_mixing)), 1e-3);
}

// Which of a site's and the streams' before their last write are read, in a single pass.
enum class Reading { of_the_site_before, of_the_site, of_new_streams, sum_at_output };

std::vector<Vector> mixed_in_a_single_pass(const Bench& bench, const Vector& embedding, size_t m,
                                           Reading reading) {
  const auto logits_of = [&](int l, const Rows& H, size_t first, size_t count, size_t map) {
    Vector z;
    for (const Vector& stream : H) z.insert(z.end(), stream.begin(), stream.end());
    const double rms = reference::rms(z, kEps);
    const Vector P = bench.values(l, "dynamic_maps"), c = bench.values(l, "static_maps");
    Vector logits;
    for (size_t row = first; row < first + count; ++row) {
      const double scaled = bench.values(l, "map_scales")[map] / rms;
      logits.push_back(scaled * dot(&P[row * z.size()], z.data(), z.size()) + c[row]);
    }
    return logits;
  };
  Rows H(m, embedding);
  Vector next_read;
  std::vector<Vector> mixed;
  for (int l = 0; l <= kSublayers; ++l) {
    const bool output = l == kSublayers;
    Vector read = next_read;
    if (!output && l > 0 && reading == Reading::of_the_site) read = logits_of(l, H, m, m, 1);
    if (l > 0 && reading == Reading::of_new_streams) read = logits_of(l - 1, H, m, m, 1);
    Vector h(embedding.size(), 0.0);
    for (size_t i = 0; i < m && l > 0; ++i) {
      const bool sums = output && reading == Reading::sum_at_output;
      h = plus(h, H[i], sums ? 1 : logistic(read[i]));
    }
    mixed.push_back(l == 0 ? embedding : h);
    if (output) break;
    next_read = logits_of(l, H, m, m, 1);
    const Vector b = logits_of(l, H, 0, m, 0);
    const Rows A = l == 0 ? identity(m) : sinkhorn(logits_of(l, H, 2 * m, m * m, 2), m);
    const Vector y = sublayer(l, normed(mixed.back(), bench.values(l, "input_norm")));
    Rows next(m, Vector(embedding.size(), 0.0));
    for (size_t j = 0; j < m; ++j) {
      for (size_t i = 0; i < m; ++i) next[j] = plus(next[j], H[i], A[j][i]);
      next[j] = plus(next[j], y, 2 * logistic(b[j]));
    }
    H = next;
  }
  return mixed;
}

TEST(Mhc, InASinglePassReadsWithTheWeightsOfTheSiteBefore) {
  for (const int64_t m : {2, 4}) {
    Bench bench({{"type", "mhc"}, {"streams", m}, {"single_pass", true}}, kWidth, kSublayers);
    bench.perturb(0.3);
    const Vector embedding = random_vector("embedding", 0, kWidth);
    const auto actual = mixed_by(bench, embedding, kSublayers);
    const auto expected = [&](Reading reading) {
      return mixed_in_a_single_pass(bench, embedding, m, reading);
    };
    EXPECT_LT(largest_difference(actual, expected(Reading::of_the_site_before)), 1e-12) << m;
    for (const Reading other :
         {Reading::of_the_site, Reading::of_new_streams, Reading::sum_at_output}) {
      EXPECT_GT(largest_difference(actual, expected(other)), 1e-3) << m;
    }
  }
}

// A site's weights are the next one's: there they have their one, at the start.
TEST(Mhc, InASinglePassStartsWithTheStreamOfTheSiteThatReadsAhead) {
  constexpr int64_t m = 4;
  const Bench bench({{"type", "mhc"}, {"streams", m}, {"single_pass", true}}, kWidth, kSublayers);
  for (int l = 0; l < kSublayers; ++l) {
    const Vector c = bench.values(l, "static_maps");
    ASSERT_EQ(c.size(), static_cast<size_t>(l == 0 ? 2 * m : 2 * m + m * m));
    for (int64_t i = 0; i < m; ++i) {
      EXPECT_EQ(c[i], i == l % m ? 1 : -1) << l;
      EXPECT_EQ(c[m + i], i == (l + 1) % m ? 1 : -1) << l;
    }
  }
}

TEST(Mhc, SurvivesExtremeLogits) {
  Bench bench({{"type", "mhc"}, {"streams", 3}}, kWidth, 3);
  const at::Tensor logits = bench.at(1, "static_maps").detach().narrow(0, 6, 9);
  assign(logits, at::tensor({900.0, -900.0, 0.0, 850.0, 0.0, -50.0, 0.0, 10.0, 2.0}));
  const at::Tensor A = mix_of_unit_streams(bench, 1, 3, kWidth);
  EXPECT_LT((A.sum(1) - 1).abs().max().item<double>(), 1e-12);
  EXPECT_GE(A.min().item<double>(), 0);
}

std::string refusal(const Json& depth_mixing) {
  try {
    Bench(depth_mixing, kWidth, kSublayers);
  } catch (const UsageError& e) {
    return e.what();
  }
  return "accepted";
}

TEST(Mhc, RefusesImpossibleSettings) {
  const auto with = [](const char* name, const char* key, int64_t value) {
    return refusal({{"type", name}, {key, value}});
  };
  EXPECT_NE(with("mhc", "streams", 1).find("expected a whole number from 2 to 16, got 1"),
            std::string::npos);
  EXPECT_NE(with("mhc_lite", "streams", 6).find("expected a whole number from 2 to 5, got 6"),
            std::string::npos);
  EXPECT_NE(with("hc_identity", "streams", 17).find("expected a whole number from 2 to 16"),
            std::string::npos);
  EXPECT_NE(with("mhc", "sinkhorn_rounds", 0).find("expected a whole number from 1 to 1000"),
            std::string::npos);
  EXPECT_NE(with("mhc_lite", "sinkhorn_rounds", 3).find("sinkhorn_rounds"), std::string::npos);
  EXPECT_EQ(with("mhc", "sinkhorn_rounds", 3), "accepted");
}

TEST(Mhc, EverySettingMatters) {
  const auto mixed = [](const Json& json) {
    Bench bench(json, kWidth, kSublayers);
    bench.perturb(0.3);
    for (int l = 1; l < kSublayers - 1; ++l) {
      assign(bench.at(l, "static_maps").detach().narrow(0, 4, 4),
             vector_tensor(random_vector("logits", l, 4, 2)));
    }
    return mixed_by(bench, random_vector("embedding", 0, kWidth), kSublayers);
  };
  const auto few = mixed({{"type", "mhc"}, {"streams", 2}, {"sinkhorn_rounds", 1}});
  const auto many = mixed({{"type", "mhc"}, {"streams", 2}, {"sinkhorn_rounds", 20}});
  EXPECT_GT(largest_difference(few, many), 1e-4);
}

}  // namespace
}  // namespace attnres::mhc_test
