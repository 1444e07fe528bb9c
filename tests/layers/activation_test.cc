// Gated activations against their formulas.
#include "attnres/layers/activation.h"

#include <ATen/ops/tensor.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numbers>

#include "attnres/layers/feed_forward.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "tests/layers/plain_layers.h"
#include "tests/tolerances.h"

namespace attnres::activation_test {
namespace {

using testing::as_vector;
using testing::close;
using ::testing::DoubleEq;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::parameter;
using testing::random_tensor;
using testing::sigmoid;
using testing::times;
using testing::Vector;

const Activation kSitu = {"situ", 4, 25};

Vector plain(const Activation& activation, const Vector& gate, const Vector& up) {
  const auto bounded = [](double x, double bound) { return bound * std::tanh(x / bound); };
  Vector y;
  for (size_t i = 0; i < gate.size(); ++i) {
    const double s = sigmoid(gate[i]);
    if (activation.type == "silu") {
      y.push_back(gate[i] * s * up[i]);
    } else if (activation.type == "gelu_tanh") {
      const double g = gate[i], bend = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
      y.push_back(0.5 * g * (1 + std::tanh(bend)) * up[i]);
    } else {
      const double u = activation.linear_beta > 0 ? bounded(up[i], activation.linear_beta) : up[i];
      y.push_back(bounded(gate[i], activation.beta) * s * u);
    }
  }
  return y;
}

TEST(Activation, IsItsFormula) {
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::Tensor gate = (5 * random_tensor({3, 7}, 1)).to(dtype);
    const at::Tensor up = (30 * random_tensor({3, 7}, 2)).to(dtype);
    for (const Activation& activation : {Activation{}, Activation{"gelu_tanh"}, kSitu,
                                         Activation{"situ", 4, 0}, Activation{"situ", 1.5, 3}}) {
      const at::Tensor y = activation(gate, up);
      EXPECT_EQ(y.scalar_type(), dtype);
      // As training computes it.
      const at::Tensor recorded = activation(gate.detach().requires_grad_(true), up);
      EXPECT_TRUE(recorded.requires_grad());
      EXPECT_TRUE(close(y, recorded.detach()));
      const Vector expected = plain(activation, as_vector(gate), as_vector(up));
      EXPECT_TRUE(close(y, at::tensor(expected, at::kDouble).view({3, 7})))
          << activation.type << " " << activation.linear_beta;
    }
    EXPECT_FALSE(close(kSitu(gate, up), Activation{}(gate, up)));
    EXPECT_FALSE(close(Activation{"gelu_tanh"}(gate, up), Activation{}(gate, up)));
    EXPECT_FALSE(close(kSitu(gate, up), kSitu(up, gate)));
    EXPECT_FALSE(close(kSitu(gate, up), Activation({"situ", 4, 0})(gate, up)));
  }
}

TEST(Activation, SituIsSwigluOfSmallInputsAndBoundedOfLarge) {
  const at::Tensor small = 1e-4 * random_tensor({50}, 1);
  EXPECT_LT((kSitu(small, small) / Activation{}(small, small) - 1).abs().max().item<double>(),
            1e-8);
  const at::Tensor large = at::tensor({-1e6, 1e6, 3e38}, at::kFloat);
  EXPECT_THAT(as_vector(kSitu(large, large)),
              ElementsAre(DoubleNear(0, 1e-30), DoubleEq(100), DoubleEq(100)));
}

TEST(Activation, RefusesWhatItDoesNotKnow) {
  const auto message = [](const Activation& activation) -> std::string {
    try {
      check_config(activation, "model.activation");
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({}), "");
  EXPECT_EQ(message({"situ", 4, -1}), "");
  EXPECT_THAT(message({"gelu"}), HasSubstr("model.activation.type: expected"));
  EXPECT_THAT(message({"gelu"}), HasSubstr("gelu"));
  EXPECT_THAT(message({"situ", 0}),
              HasSubstr("model.activation.beta: expected above 0 and at most 1000000, got 0"));
}

TEST(FeedForward, IsItsFormulaWithEitherActivation) {
  constexpr int64_t kWidth = 5, kHidden = 7;
  for (const Activation& activation : {Activation{}, Activation{"situ", 0.7, 0.9}}) {
    ParameterRegistry parameters(at::kDouble, 1);
    const FeedForward layer(kHidden, activation, {.width = kWidth, .init_std = 0.5}, parameters);
    const at::Tensor x = random_tensor({2, 3, kWidth}, 3);
    const auto forward = [&] { return layer.forward({.x = x}, {}).y; };
    Vector expected;
    for (const at::Tensor& token : x.view({-1, kWidth}).unbind(0)) {
      const Vector input = as_vector(token);
      const Vector hidden = plain(activation, times(parameter(parameters, "gate_proj"), input),
                                  times(parameter(parameters, "up_proj"), input));
      const Vector y = times(parameter(parameters, "down_proj"), hidden);
      expected.insert(expected.end(), y.begin(), y.end());
    }
    EXPECT_TRUE(close(forward(), at::tensor(expected, at::kDouble).view(x.sizes())));
    testing::expect_gradients(forward, x, parameters);
  }
}

}  // namespace
}  // namespace attnres::activation_test
