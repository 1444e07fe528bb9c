#include "attnres/ops/depth_attention/phases.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

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
                       at::ones({kSites, kTokens}), targets);
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

}  // namespace
}  // namespace attnres::phases_test
