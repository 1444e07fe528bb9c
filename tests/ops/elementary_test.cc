// RMSNorm, SwiGLU, SiTU and rotary embedding: each kernel against the same formula composed of
// tensor operations in float64, with its gradients, for every storage type and instruction set.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/rotary/rotary.h"
#include "attnres/ops/situ/situ.h"
#include "attnres/ops/swiglu/swiglu.h"
#include "tests/ops/against_formula.h"
#include "tests/ops/every_target.h"
#include "tests/tolerances.h"

namespace attnres::elementary_test {
namespace {

using at::Tensor;
using testing::close;
using testing::leaves;
using testing::on_every_target;
using testing::random;
using testing::results_and_gradients;
using testing::Tensors;

constexpr double kEps = 1e-2;  // large: its part of the result must show
const std::vector<int64_t> kWidths = {1, 2, 3, 7, 8, 16, 17, 31, 33, 64, 100};

class Kernels : public testing::AgainstFormula {};

Tensors norm_then_sum(const Tensor& sum, const Tensor& gain) {
  return {gain * sum * at::rsqrt(sum.square().mean(-1, true) + kEps), sum};
}

TEST_P(Kernels, AddRmsNorm) {
  on_every_target([&] {
    for (const int64_t width : kWidths) {
      at::manual_seed(1);
      expect_equal(
          [](const Tensors& in) -> Tensors {
            const auto [sum, normalized] = add_rms_norm(in[0], in[1], in[2], kEps);
            return {normalized, sum};
          },
          [](const Tensors& in) { return norm_then_sum(in[0] + in[1], in[2]); },
          {random({2, 5, width}), random({2, 5, width}), random({width})});
    }
  });
}

TEST_P(Kernels, RmsNorm) {
  on_every_target([&] {
    for (const int64_t width : kWidths) {
      at::manual_seed(1);
      Tensor gain = random({width});
      gain[0] = 0;
      expect_equal([](const Tensors& in) -> Tensors { return {rms_norm(in[0], in[1], kEps)}; },
                   [](const Tensors& in) -> Tensors { return {norm_then_sum(in[0], in[1])[0]}; },
                   {random({70, width}), gain});
    }
  });
}

TEST_P(Kernels, Swiglu) {
  on_every_target([&] {
    for (const int64_t width : kWidths) {
      at::manual_seed(1);
      expect_equal([](const Tensors& in) -> Tensors { return {swiglu(in[0], in[1])}; },
                   [](const Tensors& in) -> Tensors { return {at::silu(in[0]) * in[1]}; },
                   {3 * random({3, width}), random({3, width})});
    }
  });
}

Tensor situ_formula(const Tensor& gate, const Tensor& up, double beta, double linear_beta) {
  const auto bounded = [](const Tensor& x, double bound) { return bound * (x / bound).tanh(); };
  return bounded(gate, beta) * gate.sigmoid() * (linear_beta > 0 ? bounded(up, linear_beta) : up);
}

TEST_P(Kernels, Situ) {
  on_every_target([&] {
    for (const int64_t width : kWidths) {
      for (const double linear_beta : {0.0, 3.0}) {
        at::manual_seed(1);
        expect_equal(
            [&](const Tensors& in) -> Tensors { return {situ(in[0], in[1], 2, linear_beta)}; },
            [&](const Tensors& in) -> Tensors {
              return {situ_formula(in[0], in[1], 2, linear_beta)};
            },
            {2 * random({3, width}), 2 * random({3, width})});
      }
    }
  });
}

// Halves of the rows of a wider matrix, whose gradients are expanded.
TEST(Situ, ReadsColumnsWhereTheyAre) {
  const Tensor both = random({5, 14}).requires_grad_(true);
  const Tensor same = both.detach().clone().requires_grad_(true);
  const auto parts = both.chunk(2, 1), others = same.chunk(2, 1);
  const Tensor y = situ(parts[0], parts[1], 4, 25);
  EXPECT_TRUE(close(y, situ_formula(others[0], others[1], 4, 25)));
  EXPECT_FALSE(close(y, situ_formula(others[0], others[1], 4, 0)));
  EXPECT_FALSE(close(y, situ_formula(others[1], others[0], 4, 25)));
  y.sum().backward();
  situ_formula(others[0], others[1], 4, 25).sum().backward();
  EXPECT_TRUE(close(both.grad(), same.grad()));
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{}, {0, 3}, {2, 0}, {2, 3, 4}}) {
    const Tensor gate = random(shape), up = random(shape);
    EXPECT_TRUE(close(situ(gate, up, 4, 25), situ_formula(gate, up, 4, 25))) << gate.sizes();
  }
}

// e^-x beyond what the type holds.
TEST_P(Kernels, SwigluOfLargeGates) {
  const Tensor gate = at::tensor({-3e4, -1e3, -100.0, -81.0, 100.0, 1e3, 3e4}, at::kDouble);
  expect_equal([](const Tensors& in) -> Tensors { return {swiglu(in[0], in[1])}; },
               [](const Tensors& in) -> Tensors { return {at::silu(in[0]) * in[1]}; },
               {gate, at::ones_like(gate)});
}

TEST_P(Kernels, Rotary) {
  on_every_target([&] {
    for (const int64_t half : {1, 2, 3, 8, 9, 16, 33}) {
      at::manual_seed(1);
      expect_equal(
          [&](const Tensors& in) -> Tensors {
            return {apply_rotary(
                in[0], rotary_table(4, 6, rotary_frequencies(2 * half, 100), in[0].scalar_type()))};
          },
          [&](const Tensors& in) -> Tensors {
            const Tensor x = in[0];
            Tensor y = at::zeros_like(x);
            for (int64_t t = 0; t < 6; ++t) {
              for (int64_t c = 0; c < half; ++c) {
                const double angle = (4.0 + t) * std::pow(100.0, -double(c) / double(half));
                const Tensor a = x.select(1, t).select(2, c),
                             b = x.select(1, t).select(2, c + half);
                y.select(1, t).select(2, c).copy_(a * std::cos(angle) - b * std::sin(angle));
                y.select(1, t).select(2, c + half).copy_(b * std::cos(angle) + a * std::sin(angle));
              }
            }
            return {y};
          },
          {random({2, 6, 3, 2 * half})});
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Kernels, ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(RotaryTable, IsTheSameWhereverItIsCutFrom) {
  const RotaryTable later = rotary_table(90, 10, rotary_frequencies(16, 500), at::kFloat);
  const RotaryTable all = rotary_table(0, 100, rotary_frequencies(16, 500), at::kFloat);
  EXPECT_TRUE(at::equal(all.cosine.narrow(0, 90, 10), later.cosine));
  EXPECT_FALSE(
      at::equal(all.sine, rotary_table(0, 100, rotary_frequencies(16, 600), at::kFloat).sine));
}

TEST(RmsNorm, SameBitsForAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  Tensors first;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    at::manual_seed(1);
    const Tensors inputs =
        leaves({random({900, 130}), random({900, 130}), random({130})}, at::kFloat);
    const Tensors all = results_and_gradients(
        [](const Tensors& in) -> Tensors {
          const auto [sum, normalized] = add_rms_norm(in[0], in[1], in[2], kEps);
          return {normalized, sum};
        },
        inputs);
    if (first.empty()) first = all;
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(at::equal(all[i], first[i])) << i;
  }
  at::set_num_threads(before);
}

TEST(RmsNorm, StridesAndExpandedGradientsDoNotMatter) {
  const Tensor x = random({8, 20}).t().set_requires_grad(true), gain = random({8});
  const Tensor same = x.detach().contiguous().set_requires_grad(true);
  rms_norm(x, gain, kEps).sum().backward();
  rms_norm(same, gain, kEps).sum().backward();
  EXPECT_TRUE(close(x.grad(), same.grad()));
}

}  // namespace
}  // namespace attnres::elementary_test
