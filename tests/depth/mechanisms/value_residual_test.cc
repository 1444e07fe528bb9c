#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include "tests/depth/mechanisms/adapted_attention_bench.h"

namespace attnres::value_residual_test {
namespace {

using namespace testing;

constexpr int kSublayers = 8;

Json value_residual(bool learned) {
  return {{"type", "value_residual"}, {"learned", learned}};
}

// v <- lambda_1 v_earlier + lambda_2 v, `earlier` the first layer as it should be.
std::vector<Vector> expected_by(const Bench& bench, const Vector& embedding, bool learned,
                                bool first) {
  return expected_by_attention(
      bench, embedding, kSublayers, [&](const std::vector<PlainHeads>& projected) {
        PlainHeads heads = projected.back();
        const int layer = static_cast<int>(projected.size()) - 1;
        if (layer == 0) return heads;
        const Vector lambda = learned ? bench.values(2 * layer, "value_mix") : Vector{0.5, 0.5};
        const PlainHeads& earlier = first ? projected[0] : projected[layer - 1];
        for (size_t c = 0; c < heads.v.size(); ++c) {
          heads.v[c] = lambda[0] * earlier.v[c] + lambda[1] * heads.v[c];
        }
        return heads;
      });
}

class ValueResidual : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Learned, ValueResidual, ::testing::Bool());

TEST_P(ValueResidual, MixesTheFirstLayersValuesIn) {
  Bench bench(value_residual(GetParam()), attention_shape(kSublayers));
  bench.perturb(0.3);
  const Vector embedding = random_vector("embedding", 0, kAttentionWidth);
  const auto actual = mixed_by_attention(bench, embedding, kSublayers);
  EXPECT_LT(largest_difference(actual, expected_by(bench, embedding, GetParam(), true)), 1e-12);
  EXPECT_GT(largest_difference(actual, expected_by(bench, embedding, GetParam(), false)), 1e-3);
}

TEST(ValueResidualStart, IsHalfAndHalf) {
  Bench learned(value_residual(true), attention_shape(kSublayers));
  Bench fixed(value_residual(false), attention_shape(kSublayers));
  const Vector embedding = random_vector("embedding", 1, kAttentionWidth);
  const auto expected = mixed_by_attention(fixed, embedding, kSublayers);
  EXPECT_LT(largest_difference(mixed_by_attention(learned, embedding, kSublayers), expected),
            1e-12);
  // Each layer but the first has its own weights, if they are learned.
  EXPECT_EQ(learned.parameters.count(), fixed.parameters.count() + 2 * (kSublayers / 2 - 1));
  // With (0, 1) it is residual, in which heads stay as they are.
  for (int l = 2; l < kSublayers; l += 2) {
    assign(learned.at(l, "value_mix"), at::tensor({0.0, 1.0}, at::kDouble));
  }
  Bench residual({{"type", "residual"}}, attention_shape(kSublayers));
  const auto plain = mixed_by_attention(residual, embedding, kSublayers);
  EXPECT_LT(largest_difference(mixed_by_attention(learned, embedding, kSublayers), plain), 1e-12);
  EXPECT_GT(largest_difference(expected, plain), 1e-3);
}

TEST(ValueResidualStart, AsksNothingOfAnOnlyLayer) {
  const Bench bench(value_residual(true), attention_shape(2));
  EXPECT_FALSE(bench.mixer->needs(0).adapt_heads);
}

}  // namespace
}  // namespace attnres::value_residual_test
