#include "attnres/train/step/expert_balance.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/support/error.h"

namespace attnres::expert_balance_test {
namespace {

const ExpertLoads kLoads = {{1, at::tensor({10, 0, 2, 4}, at::kLong)},
                            {3, at::tensor({5, 6, 5, 4}, at::kLong)}};

TEST(BalanceExperts, MovesTheBiasOfEachSiteAgainstItsLoad) {
  ParameterRegistry registry(at::kFloat, 1);
  for (const int site : {1, 3, 5}) {
    registry.add(site, "gate", ParameterKind::matrix, {4, 2}, Init::ones());
    registry.add(site, "bias", ParameterKind::router_bias, {4}, Init::zeros());
  }
  balance_experts(registry, kLoads, 0.25);
  balance_experts(registry, kLoads, 0.25);
  const auto bias = [&](int site) { return registry.find(site, "bias")->tensor; };
  EXPECT_TRUE(at::equal(bias(1), at::tensor({-0.5f, 0.5f, 0.5f, 0.0f})));
  EXPECT_TRUE(at::equal(bias(3), at::tensor({0.0f, -0.5f, 0.0f, 0.5f})));
  EXPECT_TRUE(at::equal(bias(5), at::zeros({4})));
  for (const Parameter& p : registry.all()) {
    if (p.role == "gate") {
      EXPECT_TRUE(p.tensor.eq(1).all().item<bool>());
    }
  }
}

TEST(BalanceExperts, RefusesASiteWithoutABias) {
  const ParameterRegistry registry(at::kFloat, 1);
  EXPECT_THROW(balance_experts(registry, kLoads, 0.25), Error);
}

TEST(LoadRange, IsOverAllSitesRelativeToTheirMeans) {
  const LoadRange range = load_range(kLoads);
  EXPECT_DOUBLE_EQ(range.least, 0);
  EXPECT_DOUBLE_EQ(range.most, 2.5);
  const LoadRange even = load_range({{3, kLoads.at(3)}});
  EXPECT_DOUBLE_EQ(even.least, 0.8);
  EXPECT_DOUBLE_EQ(even.most, 1.2);
}

}  // namespace
}  // namespace attnres::expert_balance_test
