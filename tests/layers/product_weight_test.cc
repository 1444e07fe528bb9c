// Weights that are kept in one dtype and multiplied in another.
#include "attnres/layers/product_weight.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <thread>

#include "attnres/layers/linear.h"
#include "tests/tolerances.h"

namespace attnres::product_weight_test {
namespace {

using at::Tensor;
using testing::close;

TEST(ProductWeight, IsItselfInItsOwnDtype) {
  const Tensor parameter = at::randn({4, 3}).requires_grad_(true);
  const ProductWeight weight(parameter, {parameter});
  EXPECT_TRUE(weight.values(at::kFloat).is_same(parameter));
}

TEST(ProductWeight, IsCopiedOnceForEachVersion) {
  const Tensor parameter = at::randn({4, 3}).requires_grad_(true);
  const ProductWeight weight(parameter, {parameter});
  const Tensor first = weight.values(at::kBFloat16);
  EXPECT_TRUE(at::equal(first, parameter.to(at::kBFloat16)));
  EXPECT_FALSE(first.requires_grad());
  EXPECT_TRUE(weight.values(at::kBFloat16).is_same(first));
  const Tensor before = first.clone();
  {
    const at::NoGradGuard not_recording;
    Tensor(parameter).mul_(3);
  }
  EXPECT_TRUE(at::equal(weight.values(at::kBFloat16), parameter.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(first, before)) << "a backward may still want the old numbers";
}

TEST(ProductWeight, SeesAChangeOfAnyPart) {
  ParameterRegistry parameters({at::kFloat, at::kBFloat16}, 1);
  const LinearGroup maps(parameters, 0, 6, {{"a", 4, Init::normal(1)}, {"b", 5, Init::normal(1)}});
  const Tensor x = at::randn({7, 6}).to(at::kBFloat16);
  const auto expect_products = [&] {
    const std::vector<Tensor> y = maps(x);
    for (size_t i = 0; i < 2; ++i) {
      const Tensor weight = parameters.all()[i].tensor.to(at::kBFloat16).to(at::kDouble);
      EXPECT_EQ(y[i].scalar_type(), at::kBFloat16);
      EXPECT_TRUE(close(y[i], x.to(at::kDouble).mm(weight.t())));
    }
  };
  expect_products();
  for (const Parameter& p : parameters.all()) {
    const at::NoGradGuard not_recording;
    Tensor(p.tensor).mul_(2);
    expect_products();
  }
}

TEST(ProductWeight, GivesThreadsTheSameCopy) {
  const Tensor parameter = at::randn({64, 64});
  const ProductWeight weight(parameter, {parameter});
  std::vector<Tensor> seen(4);
  std::vector<std::jthread> threads;
  for (Tensor& values : seen) {
    threads.emplace_back([&] { values = weight.values(at::kBFloat16); });
  }
  threads.clear();
  for (const Tensor& values : seen) EXPECT_TRUE(values.is_same(seen[0]));
}

}  // namespace
}  // namespace attnres::product_weight_test
