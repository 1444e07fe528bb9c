#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/depth/plain_vectors.h"

namespace attnres::scalar_mix_test {
namespace {

using namespace testing;

constexpr int kSublayers = 6, kLayers = kSublayers / 2;
constexpr size_t kWidth = 12;

// Term j is the state before Transformer layer j, or `sites_early` sites before that.
Reads reference_reads(const Bench& bench, const Vector& embedding, int sites_early) {
  Reads reads;
  std::vector<Vector> states = {embedding};
  for (int l = 0; l < kSublayers; ++l) {
    const Vector x = normed(states[l], bench.values(l, "input_norm"));
    reads.mixed.push_back(states[l]);
    reads.inputs.push_back(x);
    states.push_back(plus(states[l], sublayer(l, x)));
  }
  const Vector s = bench.values(kSublayers, "layer_logits");
  double total = 0;
  for (const double logit : s) total += std::exp(logit);
  Vector mixed(kWidth, 0.0);
  for (int j = 0; j <= kLayers; ++j) {
    mixed = plus(mixed, states[std::max(0, 2 * j - sites_early)], std::exp(s[j]) / total);
  }
  const Vector x = normed(mixed, bench.values(kSublayers, "input_norm"));
  reads.mixed.push_back(mixed);
  reads.inputs.push_back(plus(Vector(kWidth, 0.0), x, bench.values(kSublayers, "gamma")[0]));
  return reads;
}

TEST(ScalarMix, MixesAsItsFormula) {
  Bench bench({{"type", "scalar_mix"}}, kWidth, kSublayers);
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const Reads expected = reference_reads(bench, embedding, 0);
  EXPECT_LT(largest_difference(reads_by(bench, embedding, kSublayers), expected), 1e-12);
  EXPECT_GT(largest_difference(reference_reads(bench, embedding, 1), expected), 1e-2);
}

TEST(ScalarMix, StartsAsTheMeanAndCanBeTheLastState) {
  Bench bench({{"type", "scalar_mix"}}, kWidth, kSublayers),
      residual({{"type", "residual"}}, kWidth, kSublayers);
  const Vector embedding = random_vector("embedding", 0, kWidth);
  const Reads expected = reads_by(residual, embedding, kSublayers);
  Vector mean(kWidth, 0.0);
  for (int j = 0; j <= kLayers; ++j) {
    mean = plus(mean, expected.mixed[2 * j], 1.0 / (kLayers + 1));
  }
  EXPECT_LT(largest_difference({mixed_by(bench, embedding, kSublayers).back()}, {mean}), 1e-13);

  assign(bench.at(kSublayers, "layer_logits"), at::tensor({0.0, 0.0, 0.0, 900.0}, at::kDouble));
  EXPECT_LT(largest_difference(reads_by(bench, embedding, kSublayers), expected), 1e-13);
}

}  // namespace
}  // namespace attnres::scalar_mix_test
