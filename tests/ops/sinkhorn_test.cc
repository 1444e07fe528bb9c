#include "attnres/ops/sinkhorn/sinkhorn.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/support/error.h"
#include "tests/ops/against_formula.h"
#include "tests/ops/every_target.h"

namespace attnres::sinkhorn_test {
namespace {

using at::Tensor;
using testing::on_every_target;
using testing::random;
using testing::Tensors;

// Divides matrices, which float64 holds where logits are moderate.
Tensor by_division(const Tensor& logits, int64_t rounds) {
  Tensor A = logits.exp();
  for (int64_t round = 0; round < rounds; ++round) {
    A = A / A.sum(1, /*keepdim=*/true);
    A = A / A.sum(2, /*keepdim=*/true);
  }
  return A;
}

struct Case {
  int64_t size, rounds;
};
constexpr Case kCases[] = {{1, 1}, {2, 1}, {3, 2}, {4, 20}, {5, 3}, {16, 4}};

class Sinkhorn : public testing::AgainstFormula {};

TEST_P(Sinkhorn, DividesColumnsAndRowsByTheirSums) {
  on_every_target([&] {
    for (const int64_t tokens : {1, 5, 16, 37}) {
      for (const Case& c : kCases) {
        at::manual_seed(1);
        expect_equal([&](const Tensors& in) -> Tensors { return {sinkhorn(in[0], c.rounds)}; },
                     [&](const Tensors& in) -> Tensors { return {by_division(in[0], c.rounds)}; },
                     {random({tokens, c.size, c.size})});
      }
    }
  });
}

TEST_P(Sinkhorn, IsTheSameComposed) {
  for (const Case& c : kCases) {
    at::manual_seed(1);
    expect_equal([&](const Tensors& in) -> Tensors { return {sinkhorn_composed(in[0], c.rounds)}; },
                 [&](const Tensors& in) -> Tensors { return {by_division(in[0], c.rounds)}; },
                 {random({5, c.size, c.size})});
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, Sinkhorn, ::testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(SinkhornMatrices, AreDoublyStochastic) {
  at::manual_seed(1);
  const Tensor A = sinkhorn(random({50, 4, 4}), 100);
  EXPECT_TRUE(at::allclose(A.sum(1), at::ones({50, 4}, at::kDouble), 0, 1e-9));
  EXPECT_TRUE(at::allclose(A.sum(2), at::ones({50, 4}, at::kDouble), 0, 1e-12));
  EXPECT_FALSE(at::allclose(sinkhorn(random({50, 4, 4}), 1).sum(1), at::ones({50, 4}, at::kDouble),
                            0, 1e-3));
}

// Exponentials that no float32 holds: a row far below its column's largest is still divided.
TEST(SinkhornMatrices, OfLogitsFarApart) {
  const Tensor logits = at::tensor({0.0f, 0.0f, -500.0f, -501.0f}).view({1, 2, 2});
  const Tensor leaf = logits.clone().set_requires_grad(true);
  const Tensor A = sinkhorn(leaf, 1);
  EXPECT_NEAR(A[0][1][0].item<float>(), 1 / (1 + std::exp(-1.0)), 1e-6);
  A[0][1][0].backward();
  EXPECT_TRUE(leaf.grad().isfinite().all().item<bool>());
}

// One number that is none spoils its matrix, and no other.
TEST(SinkhornMatrices, OfNumbersThatDivergedAreNone) {
  at::manual_seed(1);
  const Tensor logits = random({20, 3, 3});
  logits[7][1][2] = NAN;
  const Tensor leaf = logits.set_requires_grad(true), A = sinkhorn(leaf, 2);
  A.sum().backward();
  for (const Tensor& numbers : {A, leaf.grad()}) {
    EXPECT_TRUE(numbers[7].isnan().all().item<bool>());
    EXPECT_EQ(numbers.isnan().sum().item<int64_t>(), 9);
  }
}

TEST(SinkhornMatrices, OfMetaTensorsAreShapes) {
  const Tensor A = sinkhorn(random({5, 3, 3}).to(at::kMeta), 2);
  EXPECT_TRUE(A.is_meta());
  EXPECT_EQ(A.sizes(), at::IntArrayRef({5, 3, 3}));
}

TEST(SinkhornMatrices, RefuseWhatIsNotSquare) {
  EXPECT_THROW(sinkhorn(random({5, 3, 4}), 1), Error);
  EXPECT_THROW(sinkhorn(random({3, 3}), 1), Error);
  EXPECT_THROW(sinkhorn(random({5, 3, 4}).to(at::kMeta), 1), Error);
  EXPECT_THROW(sinkhorn(random({5, 3, 3}), 0), Error);
  EXPECT_THROW(sinkhorn(random({5, 3, 3}).to(at::kBFloat16), 1), Error);
}

}  // namespace
}  // namespace attnres::sinkhorn_test
