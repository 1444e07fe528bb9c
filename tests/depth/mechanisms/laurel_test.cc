#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include "attnres/support/error.h"
#include "tests/depth/plain_vectors.h"

namespace attnres::laurel_test {
namespace {

using namespace testing;

constexpr int kSublayers = 6;
constexpr size_t kWidth = 12, kRank = 5;
const char* const kVariants[] = {"rw", "lr", "pa", "rw+lr", "rw+pa"};

Json settings(const std::string& variant, int64_t rank = kRank) {
  return {{"type", "laurel"}, {"variant", variant}, {"rank", rank}};
}

Reads reference_reads(const Bench& bench, const Vector& embedding, const std::string& variant) {
  const bool looks_back = variant.find("pa") != std::string::npos;
  const bool low_rank = variant.find("lr") != std::string::npos;
  Reads reads;
  std::vector<Vector> states = {embedding};  // h_0 .. h_l
  for (int l = 0; l <= kSublayers; ++l) {
    const Vector x = normed(states[l], bench.values(l, "input_norm"));
    reads.mixed.push_back(states[l]);
    reads.inputs.push_back(x);
    if (l == kSublayers) break;

    Vector skip = states[l];
    if (low_rank) {
      const Vector down = times(bench.values(l, "low_rank_down"), states[l]);
      skip = plus(skip, times(bench.values(l, "low_rank_up"), down));
    }
    for (int k = 0; looks_back && k < 3 && k <= l; ++k) {
      const auto role = [k](const char* name) { return fmt::format("{}_{}", name, k); };
      const Vector down = times(bench.values(l, role("low_rank_down").c_str()), states[l - k]);
      skip = plus(skip, times(bench.values(l, role("low_rank_up").c_str()), down),
                  bench.values(l, role("gamma").c_str())[0]);
    }
    double a = 1, b = 1;
    if (variant.find("rw") != std::string::npos) {
      const Vector s = bench.values(l, "residual_weights");
      a = 2 * std::exp(s[0]) / (std::exp(s[0]) + std::exp(s[1]));
      b = 2 - a;
    }
    const Vector y = sublayer(l, x);
    Vector next(kWidth);
    for (size_t c = 0; c < kWidth; ++c) next[c] = a * y[c] + b * skip[c];
    states.push_back(next);
  }
  return reads;
}

TEST(Laurel, MixesAsItsFormulaInEveryVariant) {
  const Vector embedding = random_vector("embedding", 0, kWidth);
  std::vector<Reads> all;
  for (const std::string variant : kVariants) {
    Bench bench(settings(variant), kWidth, kSublayers);
    bench.perturb(0.3);
    all.push_back(reads_by(bench, embedding, kSublayers));
    const Reads expected = reference_reads(bench, embedding, variant);
    EXPECT_LT(largest_difference(all.back(), expected), 1e-11) << variant;
  }
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_GT(largest_difference(all[i], all[j]), 1e-2);
  }
}

TEST(Laurel, StartsAsResidual) {
  Bench residual({{"type", "residual"}}, kWidth, kSublayers);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const Reads expected = reads_by(residual, embedding, kSublayers);
  for (const std::string variant : kVariants) {
    Bench bench(settings(variant), kWidth, kSublayers);
    EXPECT_LT(largest_difference(reads_by(bench, embedding, kSublayers), expected), 1e-13);
    bench.perturb(0.3);
    EXPECT_GT(largest_difference(reads_by(bench, embedding, kSublayers), expected), 1e-2);
  }
}

TEST(Laurel, MapsStartWithOnesByTurns) {
  const Vector down = Bench(settings("lr", 2), 5, 2).values(0, "low_rank_down");
  const double entry = 1 / std::sqrt(10.0);
  EXPECT_EQ(down, (Vector{entry, 0, entry, 0, entry, 0, entry, 0, entry, 0}));
}

TEST(Laurel, KeepsTheStatesThatTheNextSiteLooksBackTo) {
  for (const auto& [variant, counts] :
       {std::pair{"rw+lr", std::vector<size_t>{1, 1, 1, 1, 1, 1, 1}},
        std::pair{"pa", std::vector<size_t>{1, 2, 3, 3, 3, 3, 1}}}) {
    Bench bench(settings(variant), kWidth, kSublayers);
    DepthState state = bench.mixer->start(at::ones({1, kWidth}, at::kDouble));
    for (int l = 0; l <= kSublayers; ++l) {
      EXPECT_EQ(state.open.size(), counts[l]) << variant << ", site " << l;
      if (l == kSublayers) break;
      bench.mixer->read(state);
      bench.mixer->write(state, {at::ones({1, kWidth}, at::kDouble)});
    }
  }
}

TEST(Laurel, RankMattersAndImpossibleSettingsAreRefused) {
  const Vector embedding = random_vector("embedding", 0, kWidth);
  Bench a(settings("rw+lr", 3), kWidth, kSublayers), b(settings("rw+lr", 4), kWidth, kSublayers);
  a.perturb(0.3);
  b.perturb(0.3);
  EXPECT_GT(
      largest_difference(mixed_by(a, embedding, kSublayers), mixed_by(b, embedding, kSublayers)),
      1e-2);

  const auto refusal = [](const Json& depth_mixing) -> std::string {
    try {
      Bench(depth_mixing, kWidth, kSublayers);
    } catch (const UsageError& e) {
      return e.what();
    }
    return "accepted";
  };
  EXPECT_NE(refusal(settings("lr+pa")).find("expected rw, lr, pa, rw+lr or rw+pa, got lr+pa"),
            std::string::npos);
  EXPECT_NE(
      refusal(settings("lr", 0)).find("rank: expected a whole number from 1 to 1048576, got 0"),
      std::string::npos);
  EXPECT_EQ(refusal({{"type", "laurel"}}), "accepted");
}

}  // namespace
}  // namespace attnres::laurel_test
