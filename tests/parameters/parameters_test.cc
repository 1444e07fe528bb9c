#include "attnres/parameters/parameters.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/support/error.h"

namespace attnres::parameters_test {
namespace {

at::Tensor add(ParameterRegistry& registry, int site, const char* role, int64_t size = 64) {
  return registry.add(site, role, ParameterKind::matrix, {size, 8}, Init::normal(0.5));
}

TEST(ParameterRegistry, KeepsWhatIsAdded) {
  ParameterRegistry registry(at::kFloat, 1);
  const at::Tensor q = add(registry, 2, "q_proj");
  registry.add(2, "norm", ParameterKind::norm_gain, {8}, Init::ones());
  EXPECT_EQ(registry.count(), 64 * 8 + 8);
  EXPECT_EQ(registry.find(2, "q_proj")->tensor.data_ptr(), q.data_ptr());
  EXPECT_EQ(registry.find(3, "q_proj"), nullptr);
  EXPECT_TRUE(q.is_leaf() && q.requires_grad());
  EXPECT_TRUE(registry.find(2, "norm")->tensor.eq(1).all().item<bool>());
  EXPECT_THROW(add(registry, 2, "q_proj"), Error);
}

TEST(ParameterRegistry, RefusesWhatNoMachineHolds) {
  ParameterRegistry registry(at::kFloat, 1, at::kMeta);
  const auto add = [&](const char* role, std::initializer_list<int64_t> shape) {
    registry.add(0, role, ParameterKind::matrix, shape, Init::zeros());
  };
  const int64_t million = 1'000'000;
  EXPECT_THROW(add("product_overflows", {million * million, million, million}), UsageError);
  add("first", {million, million, 900});
  EXPECT_EQ(registry.count(), 900 * million * million);
  EXPECT_THROW(add("sum_is_too_large", {million, million, 101}), UsageError);
  EXPECT_EQ(registry.find(0, "sum_is_too_large"), nullptr);
}

TEST(ParameterRegistry, StartDependsOnSeedSiteAndRoleOnly) {
  ParameterRegistry one(at::kFloat, 1), other(at::kFloat, 1), reseeded(at::kFloat, 2);
  add(other, 0, "something_else");
  const at::Tensor a = add(one, 4, "q_proj");
  EXPECT_TRUE(at::equal(a, add(other, 4, "q_proj")));
  EXPECT_FALSE(at::equal(a, add(other, 5, "q_proj")));
  EXPECT_FALSE(at::equal(a, add(other, 4, "k_proj")));
  EXPECT_FALSE(at::equal(a, add(reseeded, 4, "q_proj")));
}

TEST(ParameterRegistry, NormalHasItsStandardDeviation) {
  ParameterRegistry registry(at::kDouble, 1);
  const at::Tensor w = add(registry, 0, "w", 4096).detach();
  EXPECT_NEAR(w.mean().item<double>(), 0, 0.02);
  EXPECT_NEAR(w.std().item<double>(), 0.5, 0.02);
}

TEST(WeightDecay, IsForLinearMapsOnly) {
  EXPECT_TRUE(has_weight_decay(ParameterKind::matrix));
  EXPECT_TRUE(has_weight_decay(ParameterKind::head));
  EXPECT_FALSE(has_weight_decay(ParameterKind::embedding));
  EXPECT_FALSE(has_weight_decay(ParameterKind::norm_gain));
  EXPECT_FALSE(has_weight_decay(ParameterKind::pseudo_query));
}

TEST(RouterBias, HasNoGradient) {
  ParameterRegistry registry(at::kFloat, 1);
  EXPECT_FALSE(
      registry.add(0, "b", ParameterKind::router_bias, {4}, Init::zeros()).requires_grad());
  EXPECT_TRUE(registry.add(0, "c", ParameterKind::convolution, {4}, Init::zeros()).requires_grad());
}

}  // namespace
}  // namespace attnres::parameters_test
