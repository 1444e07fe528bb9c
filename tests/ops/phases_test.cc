#include "attnres/ops/depth_attention/phases.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/ops/every_target.h"

namespace attnres::phases_test {
namespace {

using at::Tensor;

constexpr int64_t kSources = 3, kSites = 2, kTokens = 5, kWidth = 37;

std::vector<Tensor> rows(int64_t count) {
  std::vector<Tensor> rows;
  while (std::ssize(rows) < count) rows.push_back(at::randn({kTokens, kWidth}).to(at::kBFloat16));
  return rows;
}

// Adds the gradients of phase 1's sources, or of phase 2's recent ones, to the targets.
struct Case {
  void phase_one(const std::vector<GradientTarget>& targets) const {
    phase_one_backward(sources, inverse_rms, queries, statistics, statistics, grad_outputs,
                       {.grad_sum = at::ones({kSites, kTokens})}, targets);
  }
  void phase_two(const std::vector<GradientTarget>& targets) const {
    const PhaseTwoInputs inputs{.recent = sources, .query_D = queries[0]};
    const PhaseTwoResult saved{.x = grad_outputs[1],
                               .scores = statistics.narrow(0, 0, kSources),
                               .weights = statistics.narrow(0, 0, kSources)};
    phase_two_backward(inputs, inverse_rms, /*has_earlier=*/false, saved, grad_outputs[0], {},
                       targets);
  }

  std::vector<Tensor> sources = rows(kSources), grad_outputs = rows(kSites);
  std::vector<Tensor> inverse_rms{kSources, at::ones({kTokens})};
  Tensor queries = at::randn({kSites, kWidth});
  Tensor statistics = at::randn({kSites * kSources, kTokens}).abs();
};

std::vector<GradientTarget> targets(at::ScalarType dtype, double start, bool accumulate) {
  std::vector<GradientTarget> targets;
  while (std::ssize(targets) < kSources) {
    targets.push_back({at::full({kTokens, kWidth}, start, dtype), accumulate});
  }
  return targets;
}

using Phase = void (Case::*)(const std::vector<GradientTarget>&) const;
class GradientTargets : public ::testing::TestWithParam<Phase> {};

// Bfloat16 sources whose gradients are added up in float32: each part without a rounding.
TEST_P(GradientTargets, OfTheComputeTypeReceiveUnroundedParts) {
  const Case given;
  testing::on_every_target([&] {
    const auto rounded = targets(at::kBFloat16, 0, false), exact = targets(at::kFloat, 0, false),
               sums = targets(at::kFloat, 64, true);
    for (const auto& to : {rounded, exact, sums}) (given.*GetParam())(to);
    for (int64_t n = 0; n < kSources; ++n) {
      const Tensor part = exact[n].gradient;
      EXPECT_TRUE(at::equal(part.to(at::kBFloat16), rounded[n].gradient));
      EXPECT_FALSE(at::equal(part.to(at::kBFloat16).to(at::kFloat), part));
      EXPECT_TRUE(at::allclose(sums[n].gradient, 64 + part, 0, 2e-5));
      EXPECT_FALSE(
          at::allclose(sums[n].gradient, 64 + rounded[n].gradient.to(at::kFloat), 0, 2e-5));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Phases, GradientTargets,
                         ::testing::Values(&Case::phase_one, &Case::phase_two),
                         [](const auto& info) { return info.index == 0 ? "One" : "Two"; });

// One site of sources that are much alike, as those of a trained model are.
struct AlikeSources {
  AlikeSources() {
    at::manual_seed(5);
    const Tensor common = at::randn({kRows, kChannels});
    while (std::ssize(sources) < kEarlier + 1) {
      sources.push_back((common + 0.1 * at::randn({kRows, kChannels})).to(at::kBFloat16));
    }
    query = 3 * at::randn({kChannels}) / std::sqrt(kChannels);
    grad_x = at::randn({kRows, kChannels}).to(at::kBFloat16);
  }

  // The query's gradient, by both phases; phase 1 is told of phase 2 by R or by ell's gradient.
  Tensor grad_query(bool by_scores) const {
    const at::TensorList earlier = at::TensorList(sources).slice(0, kEarlier);
    const Tensor rms = at::empty({kEarlier + 1, kRows});
    const auto unknown = [&](int64_t n) { return InverseRms{rms[n], false}; };
    std::vector<InverseRms> earlier_rms;
    for (int64_t n = 0; n < kEarlier; ++n) earlier_rms.push_back(unknown(n));
    const PhaseOneResult one = allocate_phase_one(sources[0], kEarlier, 1, /*for_backward=*/true);
    phase_one_forward(earlier, earlier_rms, query.unsqueeze(0), kEps, one);
    const PhaseTwoInputs inputs{.earlier = one.outputs[0],
                                .max = one.max[0],
                                .sum = one.sum[0],
                                .recent = {sources.back()},
                                .query_D = query,
                                .eps = kEps,
                                .norm_gain_D = at::ones({kChannels}),
                                .norm_eps = kEps};
    const PhaseTwoResult two = allocate_phase_two(sources[0], 1, true, true, true);
    phase_two_forward(inputs, {unknown(kEarlier)}, two);

    const PhaseTwoGradients grads =
        phase_two_backward(inputs, {rms[kEarlier]}, /*has_earlier=*/true, two, grad_x, {},
                           std::vector<GradientTarget>(1));
    JointSoftmax joint;
    (by_scores ? joint.other_grad_scores : joint.grad_sum) =
        (by_scores ? grads.scores : grads.sum).unsqueeze(0);
    const std::vector<GradientTarget> unwanted(kEarlier);
    const Tensor from_earlier =
        phase_one_backward(earlier, rms.narrow(0, 0, kEarlier).unbind(), query.unsqueeze(0),
                           one.scores, one.weights, {grads.earlier}, joint, unwanted);
    return from_earlier[0] + grads.query_D;
  }

  // In float64, by autograd.
  Tensor exact_grad_query() const {
    const Tensor q = query.to(at::kDouble).requires_grad_();
    std::vector<Tensor> scores, values;
    for (const Tensor& source : sources) {
      values.push_back(source.to(at::kDouble));
      scores.push_back((normalized(values.back()) * q).sum(-1, /*keepdim=*/true));
    }
    const Tensor weights = at::stack(scores).softmax(0);
    const Tensor h = (weights * at::stack(values)).sum(0);
    (normalized(h) * grad_x.to(at::kDouble)).sum().backward();
    return q.grad();
  }

  static Tensor normalized(const Tensor& rows) {
    return rows * at::rsqrt(rows.square().mean(-1, /*keepdim=*/true) + kEps);
  }

  static constexpr int64_t kEarlier = 5, kRows = 300, kChannels = 128;
  static constexpr double kEps = 1e-6;
  std::vector<Tensor> sources;
  Tensor query, grad_x;
};

// Gradients of scores are small differences here, and what goes to phase 1 is rounded to bfloat16.
TEST(JointSoftmax, GivesTheQueryItsGradientWhereSourcesAreAlike) {
  const AlikeSources given;
  const Tensor expected = given.exact_grad_query();
  const double largest = expected.abs().max().item<double>();
  const auto error = [&](bool by_scores) {
    return (given.grad_query(by_scores) - expected).abs().max().item<double>() / largest;
  };
  testing::on_every_target([&] {
    EXPECT_LT(error(/*by_scores=*/true), 0.03);
    EXPECT_GT(error(/*by_scores=*/false), 0.3);
  });
}

}  // namespace
}  // namespace attnres::phases_test
