#include "attnres/ops/depth_scores/depth_scores.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "attnres/ops/gradient_slot.h"
#include "attnres/support/error.h"
#include "tests/ops/against_formula.h"
#include "tests/ops/every_target.h"

namespace attnres::depth_scores_test {
namespace {

using at::Tensor;
using testing::on_every_target;
using testing::random;
using testing::Tensors;

constexpr size_t kSources = 3;
constexpr double kEps = 1e-2;  // large: its part of the result must show

struct Arm {
  bool by_token;  // a query for each token
  bool key_norm;
  DepthWeighing weighing;
};

std::vector<Arm> arms() {
  std::vector<Arm> all;
  for (const bool by_token : {false, true}) {
    for (const bool key_norm : {false, true}) {
      for (const auto weighing : {DepthWeighing::softmax, DepthWeighing::factorised}) {
        all.push_back({by_token, key_norm, weighing});
      }
    }
  }
  return all;
}

Tensor by_head(const Tensor& x, int64_t heads) {
  return x.unflatten(-1, {heads, -1});
}

// elu(x) + 1
Tensor feature(const Tensor& x) {
  return at::where(x > 0, x + 1, x.clamp_max(0).exp());
}

// The inputs are a query, a gain, and the sources.
Tensor scores_composed(const Tensors& in, const Arm& arm, int64_t heads) {
  Tensors scores;
  for (size_t n = 2; n < in.size(); ++n) {
    const Tensor rms = at::sqrt(in[n].square().mean(-1, true) + kEps);
    const Tensor key = arm.key_norm ? in[1] * in[n] / rms : in[n] + 0 * in[1];
    const Tensor products =
        arm.weighing == DepthWeighing::factorised ? feature(in[0]) * feature(key) : in[0] * key;
    scores.push_back(by_head(products, heads).sum(-1));
  }
  return at::stack(scores);
}

Tensor scores_of(const Tensors& in, const Arm& arm, int64_t heads) {
  const Tensor scores =
      depth_scores(at::TensorList(in).slice(2), {.query = in[0],
                                                 .key_gain = arm.key_norm ? in[1] : Tensor(),
                                                 .eps = kEps,
                                                 .heads = heads,
                                                 .weighing = arm.weighing});
  return arm.key_norm ? scores : scores + 0 * in[1].sum();
}

// The inputs are weights, and the sources.
Tensor sum_composed(const Tensors& in) {
  Tensor sum;
  for (size_t n = 1; n < in.size(); ++n) {
    const Tensor w = in[0][static_cast<int64_t>(n) - 1];
    const Tensor part =
        w.dim() == 0 ? w * in[n] : (by_head(in[n], w.size(-1)) * w.unsqueeze(-1)).flatten(-2);
    sum = n == 1 ? part : sum + part;
  }
  return sum;
}

class DepthScores : public testing::AgainstFormula {
 protected:
  // For several widths and numbers of heads.
  void for_sizes(const std::function<void(int64_t D, int64_t heads)>& check) {
    on_every_target([&] {
      for (const int64_t head : {1, 3, 8, 17, 100}) {
        for (const int64_t heads : {1, 3}) {
          at::manual_seed(1);
          check(head * heads, heads);
        }
      }
    });
  }
  static Tensors with_sources(Tensors inputs, at::IntArrayRef sizes) {
    for (size_t n = 0; n < kSources; ++n) inputs.push_back(random(sizes));
    return inputs;
  }
};

TEST_P(DepthScores, AreThoseOfTheFormula) {
  for_sizes([&](int64_t D, int64_t heads) {
    for (const Arm& arm : arms()) {
      const std::vector<int64_t> rows = {2, 3, D};
      expect_equal([&](const Tensors& in) -> Tensors { return {scores_of(in, arm, heads)}; },
                   [&](const Tensors& in) -> Tensors { return {scores_composed(in, arm, heads)}; },
                   with_sources({arm.by_token ? random(rows) : random({D}), random({D})}, rows));
    }
  });
}

TEST_P(DepthScores, WeighTheSources) {
  for_sizes([&](int64_t D, int64_t heads) {
    for (const bool by_token : {false, true}) {
      expect_equal(
          [](const Tensors& in) -> Tensors {
            return {weighted_sum(at::TensorList(in).slice(1), in[0])};
          },
          [](const Tensors& in) -> Tensors { return {sum_composed(in)}; },
          with_sources({by_token ? random({kSources, 2, 3, heads}) : random({kSources})},
                       {2, 3, D}));
    }
  });
}

TEST_P(DepthScores, AreTheSameComposed) {
  constexpr int64_t kHeads = 3, kWidth = 12;
  const std::vector<int64_t> rows = {2, 3, kWidth};
  at::manual_seed(1);
  for (const Arm& arm : arms()) {
    const auto composed = [&](const Tensors& in) -> Tensors {
      const Tensor scores = depth_scores_composed(at::TensorList(in).slice(2),
                                                  {.query = in[0],
                                                   .key_gain = arm.key_norm ? in[1] : Tensor(),
                                                   .eps = kEps,
                                                   .heads = kHeads,
                                                   .weighing = arm.weighing});
      return {arm.key_norm ? scores : scores + 0 * in[1].sum()};
    };
    expect_equal(
        composed, [&](const Tensors& in) -> Tensors { return {scores_composed(in, arm, kHeads)}; },
        with_sources({arm.by_token ? random(rows) : random({kWidth}), random({kWidth})}, rows));
  }
  for (const Tensor& weights : {random({kSources}), random({kSources, 2, 3, kHeads})}) {
    expect_equal(
        [](const Tensors& in) -> Tensors {
          return {weighted_sum_composed(at::TensorList(in).slice(1), in[0])};
        },
        [](const Tensors& in) -> Tensors { return {sum_composed(in)}; },
        with_sources({weights}, rows));
  }
}

// Scores, weights and sum, twice: the gradients of the sources meet in their slots.
TEST_P(DepthScores, AddTheGradientsOfSourcesInTheirSlots) {
  const Arm arm{.by_token = false, .key_norm = true, .weighing = DepthWeighing::softmax};
  const auto site = [&](const Tensors& in, const Tensors& sources, const auto& score,
                        const auto& sum) {
    Tensors of_scores = {in[0], in[1]}, of_sum = {};
    of_scores.insert(of_scores.end(), sources.begin(), sources.end());
    of_sum.push_back(weigh_scores(score(of_scores, arm, 2), arm.weighing));
    of_sum.insert(of_sum.end(), sources.begin(), sources.end());
    return sum(of_sum);
  };
  const auto sum_of = [](const Tensors& in) {
    return weighted_sum(at::TensorList(in).slice(1), in[0]);
  };
  at::manual_seed(1);
  expect_equal(
      [&](const Tensors& in) -> Tensors {
        Tensors sources;
        for (size_t n = 2; n < in.size(); ++n) sources.push_back(with_slot(in[n] * 1));
        const Tensor first = site(in, sources, scores_of, sum_of);
        sources.pop_back();
        return {first, site(in, sources, scores_of, sum_of)};
      },
      [&](const Tensors& in) -> Tensors {
        Tensors sources(in.begin() + 2, in.end());
        const Tensor first = site(in, sources, scores_composed, sum_composed);
        sources.pop_back();
        return {first, site(in, sources, scores_composed, sum_composed)};
      },
      with_sources({random({24}), random({24})}, {40, 24}));
}

// They put their part into the slot themselves: autograd, which would make a tensor of each and add
// it there, is given none.
TEST(DepthScoresInASlot, HandAutogradNoGradients) {
  const Tensor source = with_slot(random({5, 12}).set_requires_grad(true) * 1);
  bool given = false;
  source.register_hook([&](const Tensor& gradient) { given = given || gradient.defined(); });
  const Tensors sources = {source};
  weighted_sum(sources, depth_scores(sources, {.query = random({12}), .key_gain = {}}))
      .sum()
      .backward();
  EXPECT_FALSE(given);
  (source * 1).sum().backward();
  EXPECT_TRUE(given);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DepthScores,
                         ::testing::Values(at::kFloat, at::kDouble, at::kBFloat16),
                         [](const auto& info) { return c10::toString(info.param); });

TEST(DepthScoresOfNumbers, ThatDivergedAreNone) {
  for (const auto weighing : {DepthWeighing::softmax, DepthWeighing::factorised}) {
    const Tensors sources = {random({5, 12}), random({5, 12})};
    sources[1][3][7] = NAN;
    const Tensor scores = depth_scores(
        sources, {.query = random({12}), .key_gain = at::ones({12}), .weighing = weighing});
    EXPECT_TRUE(scores[1][3].isnan().all().item<bool>());
    EXPECT_EQ(scores.isnan().sum().item<int64_t>(), 1);
  }
}

TEST(DepthScoresOfMetaTensors, HaveShapesAlone) {
  const Tensor source = random({5, 12}).to(at::kMeta, at::kBFloat16),
               gain = at::ones({12}, at::kMeta);
  const Tensors sources = {source, source};
  const Tensor scores = depth_scores(sources, {.query = gain, .key_gain = gain, .heads = 3});
  EXPECT_TRUE(scores.is_meta());
  EXPECT_EQ(scores.sizes(), at::IntArrayRef({2, 5, 3}));
  EXPECT_EQ(scores.scalar_type(), at::kFloat);
  const Tensor sum = weighted_sum(sources, scores);
  EXPECT_EQ(sum.sizes(), source.sizes());
  EXPECT_EQ(sum.scalar_type(), at::kBFloat16);
}

TEST(DepthScoresShapes, ThatDoNotFitAreRefused) {
  const Tensors sources = {random({5, 12}), random({5, 12})};
  const auto score = [&](const Tensor& query, const Tensor& gain, int64_t heads) {
    return depth_scores(sources, {.query = query, .key_gain = gain, .heads = heads});
  };
  EXPECT_THROW(score(random({11}), {}, 1), Error);
  EXPECT_THROW(score(random({12}), random({11}), 1), Error);
  EXPECT_THROW(score(random({12}), {}, 5), Error);
  EXPECT_THROW(score(random({12}).to(at::kMeta), {}, 1), Error);
  EXPECT_THROW(score(random({12}), random({12}).to(at::kMeta), 1), Error);
  EXPECT_THROW(weighted_sum(sources, random({2}).to(at::kMeta)), Error);
  EXPECT_THROW(depth_scores(Tensors{random({5, 12}), random({5, 11})},
                            {.query = random({12}), .key_gain = {}}),
               Error);
  EXPECT_THROW(weighted_sum(sources, random({3})), Error);
  EXPECT_THROW(weighted_sum(sources, random({2, 4, 1})), Error);
  EXPECT_THROW(weighted_sum(sources, random({2, 5, 5})), Error);
  EXPECT_THROW(weighted_sum(Tensors{}, random({2})), Error);
  EXPECT_THROW(weighted_sum(Tensors{sources[0], sources[1].to(at::kMeta)}, random({2})), Error);
  EXPECT_THROW(weighted_sum(Tensors{sources[0].to(at::kInt)}, random({1})), Error);
}

}  // namespace
}  // namespace attnres::depth_scores_test
