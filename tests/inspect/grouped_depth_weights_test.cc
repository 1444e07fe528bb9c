#include "attnres/inspect/grouped_depth_weights.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attnres/model/token_depth_weights.h"
#include "attnres/support/error.h"
#include "tests/model/small_models.h"

namespace attnres::testing::grouped_depth_weights_test {
namespace {

std::vector<SiteDepthWeights> average_over(const Transformer& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  DepthWeightAverage average(model);
  model.hidden(ids, {.observer = &average});
  return average.sites();
}

// The groups of one pass, by position.
std::vector<DepthWeightGroup> by_position(const Transformer& model, const at::Tensor& ids) {
  const at::NoGradGuard no_grad;
  GroupedDepthWeights grouped(model, {"first", "1-3", "4-15", "16-63"});
  std::vector<int64_t> groups;
  for (int64_t i = 0; i < ids.numel(); ++i) groups.push_back(position_bucket(i % ids.size(1)));
  grouped.set_groups(at::tensor(groups));
  model.hidden(ids, {.observer = &grouped});
  return grouped.groups();
}

double difference(const std::vector<SiteDepthWeights>& a, const std::vector<SiteDepthWeights>& b) {
  double most = 0;
  EXPECT_EQ(a.size(), b.size());
  for (size_t l = 0; l < a.size(); ++l) {
    EXPECT_EQ(a[l].name, b[l].name);
    EXPECT_EQ(a[l].sources, b[l].sources);
    most = std::max(most, std::abs(a[l].entropy - b[l].entropy));
    for (size_t i = 0; i < a[l].weights.size(); ++i) {
      most = std::max(most, std::abs(a[l].weights[i] - b[l].weights[i]));
    }
  }
  return most;
}

TEST(PositionBucket, GrowsFourfold) {
  const std::vector<std::pair<int64_t, std::string>> expected = {
      {0, "first"}, {1, "1-3"},    {3, "1-3"},     {4, "4-15"},
      {15, "4-15"}, {16, "16-63"}, {64, "64-255"}, {255, "64-255"}};
  for (const auto& [position, name] : expected) {
    EXPECT_EQ(position_bucket_name(position_bucket(position)), name) << position;
  }
}

// First tokens see nothing else, so they are sequences of one.
TEST(GroupedDepthWeights, OfFirstTokensAreThoseOfSequencesOfOne) {
  const Transformer model = small_model(block_attn_res());
  const at::Tensor ids = random_ids(5, 6);
  const auto groups = by_position(model, ids);
  ASSERT_EQ(groups.size(), 3u);  // none has 16 tokens before it
  EXPECT_EQ(groups[0].name, "first");
  EXPECT_EQ(groups[0].tokens, 5);
  EXPECT_EQ(groups[1].tokens, 15);
  EXPECT_EQ(groups[2].tokens, 10);
  const auto alone = average_over(model, ids.narrow(1, 0, 1));
  EXPECT_LT(difference(groups[0].sites, alone), 1e-12);
  EXPECT_GT(difference(groups[1].sites, alone), 1e-3);  // negative control
}

TEST(GroupedDepthWeights, AddUpToTheAverageOverAll) {
  const Transformer model = small_model(attn_res());
  const at::Tensor ids = random_ids(3, 7);
  auto sum = average_over(model, ids);
  const auto all = sum;
  for (SiteDepthWeights& site : sum) {
    site.entropy = 0;
    std::fill(site.weights.begin(), site.weights.end(), 0);
  }
  for (const DepthWeightGroup& group : by_position(model, ids)) {
    const double share = static_cast<double>(group.tokens) / 21;
    for (size_t l = 0; l < sum.size(); ++l) {
      sum[l].entropy += share * group.sites[l].entropy;
      for (size_t i = 0; i < sum[l].weights.size(); ++i) {
        sum[l].weights[i] += share * group.sites[l].weights[i];
      }
    }
  }
  EXPECT_LT(difference(sum, all), 1e-12);
}

TEST(GroupedDepthWeights, AreEmptyWithoutDepthWeights) {
  EXPECT_TRUE(by_position(small_model(residual()), random_ids(1, 3)).empty());
}

TEST(GroupedDepthWeights, NeedTheGroupsOfThePass) {
  const Transformer model = small_model(attn_res());
  GroupedDepthWeights grouped(model, {"all"});
  EXPECT_THROW(model.hidden(random_ids(1, 3), {.observer = &grouped}), Error);
  grouped.set_groups(at::zeros({2}, at::kLong));
  EXPECT_THROW(model.hidden(random_ids(1, 3), {.observer = &grouped}), Error);
}

TEST(TokenDepthWeights, AverageToTheMeanOverTokens) {
  const Transformer model = small_model(block_attn_res());
  const at::Tensor ids = random_ids(1, 9);
  const auto tokens = token_depth_weights(model, ids[0]);
  const auto mean = average_over(model, ids);
  ASSERT_EQ(tokens.size(), mean.size());
  double spread = 0;
  for (size_t l = 0; l < mean.size(); ++l) {
    EXPECT_EQ(tokens[l].name, mean[l].name);
    EXPECT_EQ(tokens[l].sources, mean[l].sources);
    ASSERT_EQ(tokens[l].weights.size(), 9u);
    for (size_t i = 0; i < mean[l].weights.size(); ++i) {
      double sum = 0;
      for (const auto& weights : tokens[l].weights) sum += weights[i];
      EXPECT_NEAR(sum / 9, mean[l].weights[i], 1e-12);
      spread = std::max(spread, std::abs(tokens[l].weights[0][i] - mean[l].weights[i]));
    }
  }
  EXPECT_GT(spread, 1e-2);
  // What a token reads does not depend on those after it.
  const auto shorter = token_depth_weights(model, ids[0].narrow(0, 0, 4));
  EXPECT_NEAR(shorter[3].weights[2][0], tokens[3].weights[2][0], 1e-12);
  EXPECT_TRUE(token_depth_weights(small_model(residual()), ids[0]).empty());
}

TEST(TokenDepthWeights, AverageOverSitesWithAChoice) {
  const std::vector<TokenDepthWeights> sites = {
      {0, "", {"embedding"}, {{1}, {1}}},
      {1, "", {"embedding", "partial sum"}, {{0.5, 0.5}, {0.25, 0.75}}},
      {2, "", {"embedding", "block 1"}, {{0.75, 0.25}, {1, 0}}}};
  const TokenDepthWeights mean = mean_over_sites(sites);
  EXPECT_EQ(mean.name, "mean over 2 sites");
  EXPECT_EQ(mean.sources, (std::vector<std::string>{"embedding", "block 1", "partial sum"}));
  EXPECT_EQ(mean.weights,
            (std::vector<std::vector<double>>{{0.625, 0.125, 0.25}, {0.625, 0, 0.375}}));
  EXPECT_TRUE(mean_over_sites({sites[0]}).sources.empty());
}

}  // namespace
}  // namespace attnres::testing::grouped_depth_weights_test
