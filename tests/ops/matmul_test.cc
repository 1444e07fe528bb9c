// Linear maps against plain loops, and their gradients against autograd's own of at::linear.
#include "attnres/ops/matmul/matmul.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "attnres/ops/matmul/products.h"
#include "attnres/support/error.h"
#include "tests/tolerances.h"

namespace attnres::matmul_test {
namespace {

using at::Tensor;
using testing::close;
using ::testing::HasSubstr;
using Tensors = std::vector<Tensor>;

Tensor leaf(at::IntArrayRef shape, at::ScalarType dtype = at::kDouble) {
  return at::randn(shape, dtype).requires_grad_(true);
}

// The outputs, then the gradients of x and of every weight.
template <class F>
Tensors run(const Tensor& x, const Tensors& weights, const Tensors& gradients, F f) {
  Tensors inputs = {x};
  inputs.insert(inputs.end(), weights.begin(), weights.end());
  Tensors all = f(x, weights);
  const Tensors grads = torch::autograd::grad(all, inputs, gradients);
  all.insert(all.end(), grads.begin(), grads.end());
  return all;
}

std::vector<MapWeight> maps(const Tensors& weights) {
  return {weights.begin(), weights.end()};
}

Tensors one_by_one(const Tensor& x, const Tensors& weights) {
  Tensors outputs;
  for (const Tensor& weight : weights) outputs.push_back(at::linear(x, weight));
  return outputs;
}

TEST(Linear, ComputesRowByColumn) {
  const Tensor x = at::randn({2, 3, 5}, at::kDouble), weight = at::randn({7, 5}, at::kDouble);
  const Tensor y = linear_map(x, weight);
  ASSERT_EQ(y.sizes(), at::IntArrayRef({2, 3, 7}));
  Tensor expected = at::zeros({2, 3, 7}, at::kDouble);
  for (int b = 0; b < 2; ++b) {
    for (int t = 0; t < 3; ++t) {
      for (int n = 0; n < 7; ++n) {
        double sum = 0;
        for (int k = 0; k < 5; ++k) {
          sum += x[b][t][k].item<double>() * weight[n][k].item<double>();
        }
        expected[b][t][n] = sum;
      }
    }
  }
  EXPECT_TRUE(close(y, expected));
}

TEST(Linear, MapsOfOneInputHaveTheGradientsOfEachAlone) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const Tensor x = leaf({4, 9, 33}, dtype);
    const Tensors weights = {leaf({17, 33}, dtype), leaf({1, 33}, dtype), leaf({40, 33}, dtype)};
    Tensors gradients;
    for (const Tensor& weight : weights) {
      gradients.push_back(at::randn({4, 9, weight.size(0)}, dtype));
    }
    const auto each = [](const Tensor& at_x, const Tensors& w) {
      return linear_maps(at_x, maps(w));
    };
    const Tensors actual = run(x, weights, gradients, each);
    const Tensors expected = run(x, weights, gradients, one_by_one);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(close(actual[i], expected[i])) << i;
    // The gradient of x has a part of every map.
    gradients[1] = at::zeros_like(gradients[1]);
    EXPECT_FALSE(close(run(x, weights, gradients, each)[3], expected[3]));
  }
}

TEST(Linear, ReadsInputsThatAreNotContiguous) {
  const Tensor x = at::randn({6, 5, 4}, at::kDouble).transpose(0, 1).requires_grad_(true);
  const Tensors weight = {leaf({3, 4})};
  const Tensors gradient = {at::randn({3, 5, 6}, at::kDouble).permute({1, 2, 0})};
  const Tensors expected = run(x, weight, gradient, one_by_one);
  const Tensors actual = run(x, weight, gradient, [](const Tensor& at_x, const Tensors& w) {
    return Tensors{linear_map(at_x, w[0])};
  });
  for (size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(close(actual[i], expected[i])) << i;
}

TEST(Linear, LeavesOutWhatNeedsNoGradient) {
  const Tensor x = at::randn({3, 4}, at::kDouble);
  const Tensor used = leaf({2, 4}), unused = leaf({2, 4});
  const Tensors outputs = linear_maps(x, {MapWeight(used), MapWeight(unused)});
  outputs[0].sum().backward();
  EXPECT_TRUE(close(used.grad(), x.sum(0).expand({2, 4})));
  EXPECT_FALSE(unused.grad().defined());
  EXPECT_FALSE(linear_maps(x, {MapWeight(at::ones({2, 4}, at::kDouble))})[0].requires_grad());
}

TEST(Linear, GivesTheParameterTheGradientOfWhatIsMultipliedInItsPlace) {
  const Tensor x = at::randn({40, 33}).to(at::kBFloat16).requires_grad_(true);
  const Tensor parameter = leaf({17, 33}, at::kFloat), other = leaf({9, 33}, at::kFloat);
  const Tensor copy = parameter.detach().to(at::kBFloat16);
  const Tensor y =
      linear_maps(x, {{other, other.detach().to(at::kBFloat16)}, {parameter, copy}})[1];
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
  const Tensor g = at::randn({40, 17}).to(at::kBFloat16);
  y.backward(g);
  const Tensor wide_x = x.detach().to(at::kDouble), wide_g = g.to(at::kDouble);
  EXPECT_TRUE(close(y, wide_x.mm(copy.to(at::kDouble).t())));
  EXPECT_TRUE(close(x.grad(), wide_g.mm(copy.to(at::kDouble))));
  EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(close(parameter.grad(), wide_g.t().mm(wide_x), 1e-2));
  EXPECT_FALSE(close(parameter.grad(), wide_g.t().mm(wide_x.flip(0)), 1e-2));
  EXPECT_FALSE(other.grad().defined());
}

TEST(Linear, HasNoRows) {
  EXPECT_EQ(linear_map(at::ones({0, 4}), at::ones({3, 4})).sizes(), at::IntArrayRef({0, 3}));
}

TEST(Linear, RefusesWhatDoesNotFit) {
  const auto message = [](const Tensor& x, const Tensor& weight) -> std::string {
    try {
      linear_map(x, weight);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message(at::ones({2, 3}), at::ones({4, 5})), HasSubstr("[2, 3] and [4, 5]"));
  EXPECT_THAT(message(at::ones({2, 5}), at::ones({4, 5}, at::kDouble)), HasSubstr("share a dtype"));
  EXPECT_THAT(message(at::ones({2, 5}).to(at::kBFloat16), at::ones({4, 5})),
              HasSubstr("share a dtype"));
  EXPECT_THAT(message(at::ones({2, 5}), at::ones({4, 5}, at::TensorOptions(at::kMeta))),
              HasSubstr("linear map: its tensors must be on one device, but are on cpu, meta"));
  const Tensor x = leaf({2, 3});
  const Tensor y = linear_map(x, leaf({4, 3}));
  EXPECT_THROW(torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true),
               Error);
}

}  // namespace
}  // namespace attnres::matmul_test
