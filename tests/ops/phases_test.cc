#include "attnres/ops/depth_attention/phases.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
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

// By kernels, or by tensor operations.
struct Implementation {
  decltype(&phase_one_cpu) phase_one;
  decltype(&phase_one_backward_cpu) phase_one_backward;
  decltype(&phase_two_cpu) phase_two;
  decltype(&phase_two_backward_cpu) phase_two_backward;
};
constexpr Implementation kKernels = {&phase_one_cpu, &phase_one_backward_cpu, &phase_two_cpu,
                                     &phase_two_backward_cpu};
constexpr Implementation kFallback = {&phase_one_fallback, &phase_one_backward_fallback,
                                      &phase_two_fallback, &phase_two_backward_fallback};

using Targets = attnres::GradientTargets;

// Adds the gradients of phase 1's sources, or of phase 2's recent ones, to the targets.
struct Case {
  void phase_one(const Implementation& by, const Targets& targets) const {
    by.phase_one_backward({.sources = sources,
                           .inverse_rms = inverse_rms,
                           .queries_SD = queries,
                           .scores = statistics,
                           .weights = statistics,
                           .grad_outputs = grad_outputs,
                           .grad_sum = at::ones({kSites, kTokens}),
                           .targets = targets});
  }
  void phase_two(const Implementation& by, const Targets& targets) const {
    by.phase_two_backward({.grad_x = grad_outputs[0],
                           .x = grad_outputs[1],
                           .recent = sources,
                           .inverse_rms = inverse_rms,
                           .query_D = queries[0],
                           .scores = statistics.narrow(0, 0, kSources),
                           .weights = statistics.narrow(0, 0, kSources),
                           .targets = targets});
  }

  std::vector<Tensor> sources = rows(kSources), grad_outputs = rows(kSites);
  std::vector<Tensor> inverse_rms{kSources, at::ones({kTokens})};
  Tensor queries = at::randn({kSites, kWidth});
  Tensor statistics = at::randn({kSites * kSources, kTokens}).abs();
};

Targets targets(at::ScalarType dtype, double start, bool accumulate) {
  Targets targets;
  while (std::ssize(targets.gradients) < kSources) {
    targets.gradients.push_back(at::full({kTokens, kWidth}, start, dtype));
    targets.accumulate.push_back(accumulate);
  }
  return targets;
}

using Phase = void (Case::*)(const Implementation&, const Targets&) const;
class GradientTargets : public ::testing::TestWithParam<std::tuple<Phase, const Implementation*>> {
};

// Bfloat16 sources whose gradients are added up in float32: each part without a rounding.
TEST_P(GradientTargets, OfTheComputeTypeReceiveUnroundedParts) {
  const Case given;
  const auto& [phase, by] = GetParam();
  const auto add = [&, phase = phase, by = by](const Targets& to) { (given.*phase)(*by, to); };
  testing::on_every_target([&] {
    const Targets rounded = targets(at::kBFloat16, 0, false), exact = targets(at::kFloat, 0, false),
                  sums = targets(at::kFloat, 64, true);
    for (const Targets& to : {rounded, exact, sums}) add(to);
    for (int64_t n = 0; n < kSources; ++n) {
      const Tensor part = exact.gradients[n];
      EXPECT_TRUE(at::equal(part.to(at::kBFloat16), rounded.gradients[n]));
      EXPECT_FALSE(at::equal(part.to(at::kBFloat16).to(at::kFloat), part));
      EXPECT_TRUE(at::allclose(sums.gradients[n], 64 + part, 0, 2e-5));
      EXPECT_FALSE(
          at::allclose(sums.gradients[n], 64 + rounded.gradients[n].to(at::kFloat), 0, 2e-5));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Phases, GradientTargets,
                         ::testing::Combine(::testing::Values(&Case::phase_one, &Case::phase_two),
                                            ::testing::Values(&kKernels, &kFallback)),
                         [](const auto& info) {
                           return std::string(std::get<0>(info.param) == &Case::phase_one ? "One"
                                                                                          : "Two") +
                                  (std::get<1>(info.param) == &kKernels ? "ByKernels"
                                                                        : "ByFallback");
                         });

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
  Tensor grad_query(const Implementation& by, bool by_scores) const {
    const at::TensorList earlier = at::TensorList(sources).slice(0, kEarlier),
                         recent = at::TensorList(sources).slice(kEarlier);
    const std::vector<Tensor> all_rms = at::empty({kEarlier + 1, kRows}).unbind();
    const at::TensorList earlier_rms = at::TensorList(all_rms).slice(0, kEarlier),
                         recent_rms = at::TensorList(all_rms).slice(kEarlier);
    const Tensor query_1D = query.unsqueeze(0), gain = at::ones({kChannels});
    const PhaseOneResult one = allocate_phase_one(sources[0], kEarlier, 1, /*for_backward=*/true);
    by.phase_one({{earlier, earlier_rms}, query_1D, kEps}, one);
    const PhaseTwoResult two = allocate_phase_two(sources[0], 1, true, true, true);
    by.phase_two({.earlier = one.outputs[0],
                  .max = one.max,
                  .sum = one.sum,
                  .recent = {recent, recent_rms},
                  .queries_SD = query_1D,
                  .eps = kEps,
                  .norm_gain_D = gain,
                  .norm_eps = kEps},
                 two);
    const PhaseTwoGradients grads = by.phase_two_backward({.grad_x = grad_x,
                                                           .x = two.x,
                                                           .recent = recent,
                                                           .inverse_rms = recent_rms,
                                                           .query_D = query,
                                                           .norm_gain_D = gain,
                                                           .norm_eps = kEps,
                                                           .scores = two.scores,
                                                           .weights = two.weights,
                                                           .earlier_weight = two.earlier_weight,
                                                           .rho = two.rho,
                                                           .targets = unwanted(1)});
    const Tensor from_earlier = by.phase_one_backward(
        {.sources = earlier,
         .inverse_rms = earlier_rms,
         .queries_SD = query_1D,
         .scores = one.scores,
         .weights = one.weights,
         .grad_outputs = grads.earlier,
         .grad_sum = by_scores ? Tensor() : grads.sum.unsqueeze(0),
         .other_grad_scores = by_scores ? grads.scores.unsqueeze(0) : Tensor(),
         .targets = unwanted(kEarlier)});
    return from_earlier[0] + grads.query_D;
  }

  static Targets unwanted(int64_t count) {
    Targets targets;
    while (std::ssize(targets.gradients) < count) {
      targets.gradients.push_back(at::empty({0}));
      targets.accumulate.push_back(false);
    }
    return targets;
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
  const auto error = [&](const Implementation& by, bool by_scores) {
    return (given.grad_query(by, by_scores) - expected).abs().max().item<double>() / largest;
  };
  testing::on_every_target([&] {
    EXPECT_LT(error(kKernels, /*by_scores=*/true), 0.03);
    EXPECT_GT(error(kKernels, /*by_scores=*/false), 0.3);
  });
  EXPECT_LT(error(kFallback, /*by_scores=*/true), 0.03);
  EXPECT_GT(error(kFallback, /*by_scores=*/false), 0.3);
}

}  // namespace
}  // namespace attnres::phases_test
