#include "attnres/depth/mixing_cost.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace attnres::mixing_cost_test {
namespace {

constexpr int kSublayers = 8;
constexpr double kWidth = 64, kTokens = 64;  // as the measurement runs
constexpr double kGain = 1 / kTokens;        // of a norm, in units of d per token

MixingCost cost_of(const Json& depth_mixing, int sublayers = kSublayers, int64_t width = 64) {
  const MixerShape shape = {
      .width = width, .sublayers = sublayers, .norm_eps = 1e-6, .heads = 4, .kv_heads = 2};
  return measure_mixing_cost(DepthMixing(depth_mixing, shape), shape);
}

// Site 0 reads the embedding and writes its norm; every other site reads the stream and an output,
// and writes their sum and its norm.
TEST(MixingCost, OfResidualConnectionsIsTwoReadsAndTwoWrites) {
  const MixingCost cost = cost_of({{"type", "residual"}});
  EXPECT_NEAR(cost.moved, (2 + kGain + kSublayers * (4 + kGain)) / kSublayers, 1e-12);
  EXPECT_EQ(cost.parameters, 0);
  EXPECT_EQ(cost.sealed, 0);
  EXPECT_EQ(cost.open, 1);
  // Kept: the sum and its norm, and a reciprocal RMS a token.
  const double rms = 1 / kWidth;
  EXPECT_NEAR(cost.kept, ((1 + rms) + kSublayers * (2 + rms)) / kSublayers, 1e-12);
}

// bench/traffic counts the bytes of the kernels themselves, there with the model of a cache: 7.88 d
// for Full and 6.88 d for Block (S = 3) per site at L = 24, queries and gains left out.
TEST(MixingCost, OfAttentionResidualsIsWhatTheirKernelsMove) {
  const double sites_a_sublayer = 25.0 / 24;
  const MixingCost full = cost_of({{"type", "attn_res"}}, 24, 512);
  EXPECT_NEAR(full.moved, 7.88 * sites_a_sublayer, 0.25);
  const MixingCost block = cost_of({{"type", "block_attn_res"}, {"block_size", 3}}, 24, 512);
  EXPECT_NEAR(block.moved, 6.88 * sites_a_sublayer, 0.25);
  EXPECT_EQ(full.parameters, 2 * 24 * 512);
  // Before site 12: the embedding and 12 outputs, or 4 blocks of 3.
  EXPECT_EQ(full.sealed, 13);
  EXPECT_EQ(block.sealed, 5);
  // One pass over all sources at every site moves more.
  EXPECT_GT(cost_of({{"type", "attn_res"}, {"window", 23}}, 24, 512).moved, 1.5 * full.moved);
}

TEST(MixingCost, CountsProductsExactly) {
  // A gate's map is d x d at every sublayer; what else highway does is a few numbers a channel.
  const MixingCost highway = cost_of({{"type", "highway"}});
  EXPECT_GT(highway.multiply_adds, kWidth * kWidth);
  EXPECT_LT(highway.multiply_adds, kWidth * (kWidth + 20));
  EXPECT_EQ(highway.parameters, kSublayers * (64 * 64 + 64));
}

// What the mixing of m streams adds: the maps' m^2 logits of m d numbers, their normalisations by
// row and column, and the mixing itself.
TEST(MixingCost, CountsWhatStreamsAreMixedWith) {
  constexpr double m = 4, kRounds = 20;
  const auto cost = [](const char* type) {
    return cost_of({{"type", type}, {"streams", 4}}).multiply_adds;
  };
  constexpr double kSites = (kSublayers - 1.0) / kSublayers;  // the first mixes nothing
  constexpr double kLogits = m * m * m * kWidth, kMixing = m * m * kWidth;
  constexpr double kExpected = kSites * (kLogits + kMixing + 2 * kRounds * m * m);
  EXPECT_NEAR(cost("mhc") - cost("hc_identity"), kExpected, 0.25 * kMixing);
}

TEST(MixingCost, SeesWhatCrossesACut) {
  EXPECT_EQ(cost_of({{"type", "hyper_connections"}, {"streams", 3}}).open, 3);
  // The residual stream, and the first layer's values: half as wide, as there are half as many
  // heads.
  const MixingCost values = cost_of({{"type", "value_residual"}});
  EXPECT_EQ(values.open, 1);
  EXPECT_EQ(values.sealed, 0.5);
}

}  // namespace
}  // namespace attnres::mixing_cost_test
