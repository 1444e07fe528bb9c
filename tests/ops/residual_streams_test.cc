#include "attnres/ops/residual_streams/residual_streams.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/ops/gradient_slot.h"
#include "attnres/support/error.h"
#include "tests/ops/against_formula.h"
#include "tests/ops/every_target.h"

namespace attnres::residual_streams_test {
namespace {

using at::Tensor;
using testing::on_every_target;
using testing::random;
using testing::Tensors;

constexpr int64_t kTokens = 5;
constexpr double kEps = 1e-2;  // large: its part of the result must show

class ResidualStreams : public testing::AgainstFormula {
 protected:
  // For several numbers m of streams of width D.
  void for_sizes(const std::function<void(int64_t m, int64_t D)>& check) {
    on_every_target([&] {
      for (const int64_t m : {1, 2, 4, 5, 16}) {
        for (const int64_t D : {1, 3, 8, 17, 64, 100}) {
          at::manual_seed(1);
          check(m, D);
        }
      }
    });
  }
};

Tensor read_composed(const Tensor& H, const Tensor& a) {
  return (a.unsqueeze(-1) * H).sum(1);
}

Tensor write_composed(const Tensor& H, const Tensor& A, const Tensor& b, const Tensor& y) {
  return at::matmul(A, H) + b.unsqueeze(-1) * y.unsqueeze(1);
}

Tensor project_composed(const Tensor& x, const Tensor& W) {
  return at::matmul(x, W.t()) * at::rsqrt(x.square().mean(-1, true) + kEps);
}

TEST_P(ResidualStreams, AreReadAsASumByWeights) {
  for_sizes([&](int64_t m, int64_t D) {
    expect_equal([](const Tensors& in) -> Tensors { return {read_streams(in[0], in[1])}; },
                 [](const Tensors& in) -> Tensors { return {read_composed(in[0], in[1])}; },
                 {random({kTokens, m, D}), random({kTokens, m})});
  });
}

TEST_P(ResidualStreams, MixAndTakeInAnOutput) {
  for_sizes([&](int64_t m, int64_t D) {
    expect_equal(
        [](const Tensors& in) -> Tensors {
          return {write_streams(in[0], {in[1], in[2], in[3]})};
        },
        [](const Tensors& in) -> Tensors { return {write_composed(in[0], in[1], in[2], in[3])}; },
        {random({kTokens, m, D}), random({kTokens, m, m}), random({kTokens, m}),
         random({kTokens, D})});
  });
}

TEST_P(ResidualStreams, TakeInAnOutputUnmixed) {
  for_sizes([&](int64_t m, int64_t D) {
    expect_equal(
        [](const Tensors& in) -> Tensors {
          return {write_streams(in[0], {{}, in[1], in[2]})};
        },
        [m](const Tensors& in) -> Tensors {
          return {write_composed(in[0], at::eye(m, in[0].options()), in[1], in[2])};
        },
        {random({kTokens, m, D}), random({kTokens, m}), random({kTokens, D})});
  });
}

TEST_P(ResidualStreams, AreProjectedAfterTheirNorm) {
  for (const int64_t K : {1, 17, 64}) {
    at::manual_seed(1);
    expect_equal(
        [](const Tensors& in) -> Tensors { return {project_normalised(in[0], in[1], kEps)}; },
        [](const Tensors& in) -> Tensors { return {project_composed(in[0], in[1])}; },
        {random({kTokens, 3, K}), random({6, K})});
  }
}

TEST_P(ResidualStreams, AreTheSameComposed) {
  constexpr int64_t m = 4, D = 17;
  at::manual_seed(1);
  expect_equal([](const Tensors& in) -> Tensors { return {read_streams_composed(in[0], in[1])}; },
               [](const Tensors& in) -> Tensors { return {read_composed(in[0], in[1])}; },
               {random({kTokens, m, D}), random({kTokens, m})});
  const Tensors written = {random({kTokens, m, D}), random({kTokens, m, m}), random({kTokens, m}),
                           random({kTokens, D})};
  for (const bool mixed : {true, false}) {
    expect_equal(
        [&](const Tensors& in) -> Tensors {
          const Tensor mix = mixed ? in[1] : Tensor();
          return {write_streams_composed(in[0], {mix, in[2], in[3]}) + 0 * in[1].sum()};
        },
        [&](const Tensors& in) -> Tensors {
          const Tensor mix = mixed ? in[1] : at::eye(m, in[0].options()) + 0 * in[1];
          return {write_composed(in[0], mix, in[2], in[3])};
        },
        written);
  }
  expect_equal(
      [](const Tensors& in) -> Tensors {
        return {project_normalised_composed(in[0], in[1], kEps)};
      },
      [](const Tensors& in) -> Tensors { return {project_composed(in[0], in[1])}; },
      {random({kTokens, D}), random({6, D})});
}

// All that a sublayer does with the streams: their gradients meet in one slot.
TEST_P(ResidualStreams, AddTheirGradientsInASlot) {
  const auto sublayer = [](const Tensor& H, const auto& project, const auto& read,
                           const auto& write) -> Tensors {
    const Tensor a = project(H), h = read(H, a);
    return {write(H, h), H.sum(1)};
  };
  const int64_t m = 4, D = 24;
  at::manual_seed(1);
  expect_equal(
      [&](const Tensors& in) {
        const Tensor H = with_slot(in[0] * 1);
        return sublayer(
            H, [&](const Tensor& x) { return project_normalised(x, in[1], kEps); }, read_streams,
            [&](const Tensor& to, const Tensor& y) {
              return write_streams(to, {in[2], in[3], y});
            });
      },
      [&](const Tensors& in) {
        return sublayer(
            in[0], [&](const Tensor& x) { return project_composed(x.flatten(1), in[1]); },
            read_composed,
            [&](const Tensor& to, const Tensor& y) { return write_composed(to, in[2], in[3], y); });
      },
      {random({kTokens, m, D}), random({m, m * D}), random({kTokens, m, m}), random({kTokens, m})});
}

// They put their part into the slot themselves: autograd, which would make a tensor of each and add
// it there, is given none.
TEST(ResidualStreamsInASlot, HandAutogradNoGradients) {
  const Tensor H = with_slot(random({kTokens, 4, 8}).set_requires_grad(true) * 1);
  bool given = false;
  H.register_hook([&](const Tensor& gradient) { given = given || gradient.defined(); });
  const Tensor a = project_normalised(H, random({4, 32}), kEps), h = read_streams(H, a);
  write_streams(H, {{}, a, h}).sum().backward();
  EXPECT_FALSE(given);
  (H * 1).sum().backward();
  EXPECT_TRUE(given);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, ResidualStreams,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(ResidualStreamsOfMetaTensors, HaveShapesAlone) {
  const auto meta = at::TensorOptions(at::kMeta);
  const Tensor H = at::empty({kTokens, 4, 8}, meta), W = at::empty({6, 32}, meta);
  const Tensor maps = project_normalised(H, W, kEps), b = maps.narrow(1, 0, 4);
  EXPECT_EQ(maps.sizes(), at::IntArrayRef({kTokens, 6}));
  const Tensor h = read_streams(H, b);
  EXPECT_TRUE(h.is_meta());
  EXPECT_EQ(h.sizes(), at::IntArrayRef({kTokens, 8}));
  EXPECT_EQ(write_streams(H, {at::empty({kTokens, 4, 4}, meta), b, h}).sizes(), H.sizes());
}

TEST(ResidualStreamsShapes, ThatDoNotFitAreRefused) {
  const Tensor H = random({kTokens, 4, 8}), b = random({kTokens, 4}), y = random({kTokens, 8});
  EXPECT_THROW(read_streams(H, random({kTokens, 3})), Error);
  EXPECT_THROW(read_streams(H.flatten(1), b), Error);
  EXPECT_THROW(read_streams(random({kTokens, 0, 8}), random({kTokens, 0})), Error);
  EXPECT_THROW(read_streams(H, b.to(at::kMeta)), Error);
  EXPECT_THROW(write_streams(H, {random({kTokens, 4, 4}).to(at::kMeta), b, y}), Error);
  EXPECT_THROW(write_streams(H, {{}, b, y.to(at::kMeta)}), Error);
  EXPECT_THROW(write_streams(H, {random({kTokens, 4, 3}), b, y}), Error);
  EXPECT_THROW(write_streams(H, {{}, b, random({kTokens, 7})}), Error);
  EXPECT_THROW(write_streams(H, {{}, b, y.to(at::kFloat)}), Error);
  EXPECT_THROW(read_streams(H.to(at::kInt), b), Error);
  EXPECT_THROW(project_normalised(H, random({6, 8}).to(at::kMeta), kEps), Error);
  for (const int64_t K : {7, 16, 33, 161}) {
    EXPECT_THROW(project_normalised(H, random({6, K}), kEps), Error);
  }
}

}  // namespace
}  // namespace attnres::residual_streams_test
