#include "attnres/study/seed_curves.h"

#include <gmock/gmock.h>

#include <cmath>
#include <regex>

#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::seed_curves_test {
namespace {

using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

double along_tokens(const Metric& metric) {
  return metric.tokens;
}
double along_time(const Metric& metric) {
  return metric.seconds;
}

// Validation losses at 10 and 20 tokens, and the seconds that they took.
RunData run_with(std::vector<double> losses, double seconds_a_step = 1) {
  RunData run;
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto step = static_cast<double>(i + 1);
    run.metrics.push_back({.step = static_cast<int64_t>(i + 1),
                           .tokens = 10 * step,
                           .seconds = seconds_a_step * step,
                           .val_loss = losses[i]});
  }
  return run;
}

// Residual and block with the same seeds: block is lower with the first and higher with the others.
StudyData planted() {
  StudyData data;
  data.study.axes = {"mixing"};
  data.study.baseline = {{"mixing", "residual"}};
  const auto add = [&](const char* arm, int64_t seed, RunData run,
                       RunState state = RunState::done) {
    const double last = run.metrics.empty() ? kNotMeasured : run.metrics.back().val_loss;
    StudyRunRecord& record = data.study.runs.emplace_back();
    record.name = arm + std::to_string(seed);
    record.arms = {arm};
    record.seed = seed;
    record.state = state;
    record.final_val_loss = last;
    data.runs.emplace_back(std::move(run));
  };
  add("residual", 1, run_with({3, 2}));
  add("residual", 2, run_with({3.5, 2.5}, 2));
  add("block", 1, run_with({2.75, 1.5}));
  add("block", 2, run_with({3.75, 3.25}, 3));
  data.arms = compare_study(data.study);
  return data;
}

TEST(SeedCurves, HaveEverySeedAndTheirMean) {
  const StudyData data = planted();
  const SeedCurves block = validation_curves(data, 1, along_tokens);
  ASSERT_EQ(block.seeds.size(), 2u);
  EXPECT_THAT(block.seeds[0].y, ElementsAre(2.75, 1.5));
  EXPECT_THAT(block.seeds[1].y, ElementsAre(3.75, 3.25));
  EXPECT_THAT(block.mean.x, ElementsAre(10, 20));
  EXPECT_THAT(block.mean.y, ElementsAre(3.25, 2.375));
  EXPECT_THAT(validation_curves(data, 1, along_time).mean.x, ElementsAre(2, 4));
}

// The first site has one source and does not count; of the others, with two and four sources, half
// and a quarter of the sum of ln 2 and ln 4.
TEST(SeedCurves, OfEntropiesAreSharesOfUniformWeights) {
  StudyData data = planted();
  const double uniform = std::log(2) + std::log(4);
  for (const auto& [run, share] : {std::pair(2, 0.5), std::pair(3, 0.25)}) {
    auto& probes = data.runs[run]->probes;
    probes["depth_weights"][20] = {{0, {1}}, {1, {0.5, 0.5}}, {2, {0.1, 0.2, 0.3, 0.4}}};
    probes["depth_entropy"][10] = {{0, {0}}, {1, {uniform}}, {2, {0}}};
    probes["depth_entropy"][20] = {{0, {0}}, {1, {share * uniform}}, {2, {0}}};
    probes["depth_entropy"][30] = {{0, {0}}, {1, {uniform}}};  // cut off
  }
  const SeedCurves block = entropy_curves(data, 1);
  ASSERT_EQ(block.seeds.size(), 2u);
  EXPECT_THAT(block.mean.x, ElementsAre(10, 20));
  EXPECT_THAT(block.mean.y, ElementsAre(DoubleEq(1), DoubleEq(0.375)));
  EXPECT_THAT(entropy_curves(data, 0).mean.x, IsEmpty());
}

// What the curve ends with is what the table and the verdict have.
TEST(SeedCurves, OfDifferencesArePairedAndEndWithTheTablesMean) {
  const StudyData data = planted();
  const SeedCurves block = difference_curves(data, 1, along_tokens);
  ASSERT_EQ(block.seeds.size(), 2u);
  EXPECT_THAT(block.seeds[0].y, ElementsAre(-0.25, -0.5));
  EXPECT_THAT(block.seeds[1].y, ElementsAre(0.25, 0.75));
  EXPECT_THAT(block.mean.y, ElementsAre(0, 0.125));
  EXPECT_EQ(block.mean.y.back(), data.arms.arms[1].difference.mean);
  EXPECT_THAT(difference_curves(data, 0, along_tokens).seeds, IsEmpty());
}

// A seed that goes on is shown, and bends no mean.
TEST(SeedCurves, AverageTheRunsThatAreDone) {
  StudyData data = planted();
  data.study.runs[3].state = RunState::unfinished;
  data.runs[3]->metrics.pop_back();
  data.arms = compare_study(data.study);
  const SeedCurves block = validation_curves(data, 1, along_tokens);
  EXPECT_EQ(block.seeds.size(), 2u);
  EXPECT_THAT(block.mean.y, ElementsAre(2.75, 1.5));
  // Where none is done, as far as all go.
  data.study.runs[2].state = RunState::unfinished;
  EXPECT_THAT(validation_curves(data, 1, along_tokens).mean.y, ElementsAre(3.25));
  data.runs[3]->metrics.clear();
  EXPECT_THAT(validation_curves(data, 1, along_tokens).mean.y, ElementsAre(2.75, 1.5));
}

TEST(SeedCurves, AreDrawnPaleWithAMarkedMean) {
  const StudyData data = planted();
  const std::string html = seed_loss_figures(data, {0, 1});
  const auto curves = [&](const std::string& color) {
    const std::regex path("stroke='rgb\\( *" + color + "\\)'[^>]*d='M");
    return std::distance(std::sregex_iterator(html.begin(), html.end(), path),
                         std::sregex_iterator());
  };
  // Three plots with a mean of block, in its colour and in a paler one two seeds each.
  EXPECT_GE(curves("213,  94,   0"), 3);
  EXPECT_EQ(curves("239, 194, 158"), 6);
  EXPECT_THAT(seed_loss_figures(data, {}), ::testing::HasSubstr("No run has a validation loss"));
}

}  // namespace
}  // namespace attnres::seed_curves_test
