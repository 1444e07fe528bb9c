// Checks an operation with a kernel, and its gradients, against the same formula composed of tensor
// operations in float64.
#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <vector>

#include "tests/tolerances.h"

namespace attnres::testing {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<Tensors(const Tensors&)>;

inline Tensors leaves(const Tensors& values, at::ScalarType dtype) {
  Tensors copies;
  for (const at::Tensor& value : values) {
    copies.push_back(value.detach().to(dtype, false, /*copy=*/true).set_requires_grad(true));
  }
  return copies;
}

// The results and, for fixed random gradients of them, the inputs' gradients.
inline Tensors results_and_gradients(const Operation& operation, const Tensors& inputs) {
  Tensors all = operation(inputs);
  at::manual_seed(3);
  Tensors gradients;
  for (const at::Tensor& result : all) {
    gradients.push_back(at::randn(result.sizes(), at::kDouble).to(result.scalar_type()));
  }
  torch::autograd::backward(all, gradients);
  for (const at::Tensor& input : inputs) all.push_back(input.grad());
  return all;
}

inline at::Tensor random(at::IntArrayRef shape) {
  return 1.5 * at::randn(shape, at::kDouble);
}

class AgainstFormula : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  // `values` are rounded to the dtype first, so that both sides see the same.
  void expect_equal(const Operation& actual, const Operation& expected, const Tensors& values) {
    const Tensors inputs = leaves(values, GetParam());
    const Tensors is = results_and_gradients(actual, inputs);
    const Tensors should = results_and_gradients(expected, leaves(inputs, at::kDouble));
    // A few roundings of the storage type, where results are results of results; those of a gain's
    // gradient add up over the tokens, where its terms cancel.
    const double bound = 3 * tolerance(GetParam());
    for (size_t i = 0; i < is.size(); ++i) {
      EXPECT_TRUE(close(is[i], should[i], bound)) << i << " of " << values[0].sizes();
    }
  }
};

}  // namespace attnres::testing
