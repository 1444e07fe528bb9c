#include "attnres/report/power_law.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "attnres/support/error.h"

namespace attnres::power_law_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// The curves that arXiv 2603.15031 prints in Figure 4, in PFLOP/s-days.
constexpr PowerLaw kBaseline{1.891, 0.057}, kBlock{1.870, 0.058};

// Eight budgets over two decades; `noise` is the deviation of ln L.
std::vector<ScalingPoint> points_on(const PowerLaw& law, double noise, uint64_t seed) {
  std::vector<ScalingPoint> points;
  const RandomStream stream(seed, "noise");
  for (uint64_t i = 0; i < 8; ++i) {
    const double compute = 0.1 * std::pow(2, double(i));
    points.push_back({compute, law.loss(compute) * std::exp(noise * stream.normal(i))});
  }
  return points;
}

bool covers(const Interval& interval, double value) {
  return interval.low <= value && value <= interval.high;
}

TEST(PowerLaw, GivesTheLossesOfThePaper) {
  EXPECT_NEAR(kBaseline.loss(5.6), 1.714, 5e-4);
  EXPECT_NEAR(kBlock.loss(5.6), 1.692, 5e-4);
  EXPECT_NEAR(kBlock.compute(kBlock.loss(5.6)), 5.6, 1e-12);
}

TEST(FitPowerLaw, RecoversACurveWithoutNoise) {
  const PowerLawFit fit = fit_power_law(points_on(kBlock, 0, 1), 1);
  EXPECT_NEAR(fit.law.a, kBlock.a, 1e-12);
  EXPECT_NEAR(fit.law.alpha, kBlock.alpha, 1e-12);
  EXPECT_NEAR(fit.alpha.low, fit.alpha.high, 1e-12);
}

// The interval is narrow enough to refuse an exponent that is wrong by a tenth.
TEST(FitPowerLaw, IntervalsCoverWhatWasPlanted) {
  const PowerLawFit fit = fit_power_law(points_on(kBaseline, 0.002, 1), 1);
  EXPECT_TRUE(covers(fit.a, kBaseline.a));
  EXPECT_TRUE(covers(fit.alpha, kBaseline.alpha));
  EXPECT_FALSE(covers(fit.a, 1.01 * kBaseline.a));
  EXPECT_FALSE(covers(fit.alpha, 1.1 * kBaseline.alpha));
  EXPECT_FALSE(covers(fit.alpha, 0.9 * kBaseline.alpha));
}

// With eight points a little less often than 95 %: a normal distribution's interval covers 90 % of
// Student's t with six degrees of freedom.
TEST(FitPowerLaw, IntervalsCoverAboutAsOftenAsTheySay) {
  constexpr int kTimes = 400;
  int covered = 0;
  for (uint64_t seed = 0; seed < kTimes; ++seed) {
    covered += covers(fit_power_law(points_on(kBaseline, 0.01, seed), seed).alpha, kBaseline.alpha);
  }
  EXPECT_NEAR(double(covered) / kTimes, 0.91, 0.04);
}

TEST(FitPowerLaw, EqualArgumentsGiveEqualIntervals) {
  const std::vector<ScalingPoint> points = points_on(kBaseline, 0.01, 2);
  EXPECT_EQ(fit_power_law(points, 5).alpha.low, fit_power_law(points, 5).alpha.low);
  EXPECT_NE(fit_power_law(points, 5).alpha.low, fit_power_law(points, 6).alpha.low);
}

TEST(FitPowerLaw, RefusesTooFewBudgets) {
  const auto fit = [](const std::vector<ScalingPoint>& points) {
    return [points] { fit_power_law(points, 1); };
  };
  EXPECT_THAT(fit({{1, 2}, {2, 1.9}}),
              ThrowsMessage<Error>(HasSubstr("2 points at 2 different budgets are too few")));
  EXPECT_THAT(fit({{1, 2}, {1, 2.1}, {2, 1.9}}),
              ThrowsMessage<Error>(HasSubstr("3 points at 2 different budgets are too few")));
  EXPECT_THAT(fit({{1, 2}, {2, 1.9}, {0, 1.8}}), ThrowsMessage<Error>(HasSubstr("above 0")));
  EXPECT_THAT(fit({{1, 2}, {2, 1.9}, {3, NAN}}), ThrowsMessage<Error>(HasSubstr("above 0")));
  EXPECT_NO_THROW(fit({{1, 2}, {2, 1.9}, {4, 1.8}})());
  // So near each other that their logarithms are the same.
  const double second = std::nextafter(7e9, 8e9), third = std::nextafter(second, 8e9);
  EXPECT_THAT(fit({{7e9, 2}, {second, 1.9}, {third, 1.8}}),
              ThrowsMessage<Error>(HasSubstr("different budgets are too few")));
}

// The paper's own curves, and its own words: 1.25 times at 5.6 PFLOP/s-days.
TEST(ComputeAdvantage, IsThePapers) {
  const std::vector<ScalingPoint> block = points_on(kBlock, 0, 1),
                                  baseline = points_on(kBaseline, 0, 1);
  EXPECT_NEAR(compute_advantage(block, baseline, 5.6, 1).factor, 1.25, 0.01);
  EXPECT_LT(compute_advantage(baseline, block, 5.6, 1).factor, 0.85) << "the other way round";
  EXPECT_NEAR(compute_advantage(block, block, 5.6, 1).factor, 1, 1e-9);
}

// A curve moved by a factor of compute has that advantage at every budget.
TEST(ComputeAdvantage, CoversAPlantedShift) {
  const PowerLaw shifted{kBaseline.loss(1.25), kBaseline.alpha};
  constexpr int kTimes = 200;
  for (double budget : {0.5, 5.6}) {
    int covered = 0, ahead = 0, further = 0;
    for (uint64_t seed = 0; seed < kTimes; ++seed) {
      const ComputeAdvantage found =
          compute_advantage(points_on(shifted, 0.001, seed),
                            points_on(kBaseline, 0.001, seed + kTimes), budget, seed);
      covered += covers(found.interval, 1.25);
      ahead += found.interval.low > 1;
      further += found.interval.high > 1.5;
    }
    EXPECT_GT(covered, 0.88 * kTimes) << budget;
    EXPECT_EQ(ahead, kTimes) << "no interval reaches down to 1";
    EXPECT_EQ(further, 0) << "none reaches up to 1.5";
  }
}

// What pairs share, here all of the noise but a tenth, is no doubt about their difference.
TEST(ComputeAdvantage, PairsCancelWhatTheyShare) {
  const PowerLaw shifted{kBaseline.loss(1.25), kBaseline.alpha};
  int covered = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    auto ours = points_on(shifted, 0.01, seed), theirs = points_on(kBaseline, 0.01, seed);
    const RandomStream stream(seed, "own noise");
    for (size_t i = 0; i < ours.size(); ++i) ours[i].loss *= std::exp(0.001 * stream.normal(i));
    const Interval paired = compute_advantage(ours, theirs, 5.6, seed, ScalingPairs::yes).interval;
    const Interval apart = compute_advantage(ours, theirs, 5.6, seed).interval;
    covered += covers(paired, 1.25);
    EXPECT_GT(paired.low, 1);
    EXPECT_LT(paired.high - paired.low, 0.5 * (apart.high - apart.low));
  }
  EXPECT_GT(covered, 40);
  const auto points = points_on(kBlock, 0, 1);
  EXPECT_THAT(
      [&] {
        compute_advantage(points, {points.begin(), points.end() - 1}, 1, 1, ScalingPairs::yes);
      },
      ThrowsMessage<Error>(HasSubstr("expected pairs, got 8 and 7 points")));
}

TEST(ComputeAdvantage, RefusesWhatHasNone) {
  const std::vector<ScalingPoint> falls = points_on(kBlock, 0, 1), rises = {{1, 1}, {2, 2}, {3, 3}};
  EXPECT_THAT([&] { compute_advantage(falls, rises, 1, 1); },
              ThrowsMessage<Error>(HasSubstr("does not fall with compute")));
  EXPECT_THAT([&] { compute_advantage(falls, falls, 0, 1); },
              ThrowsMessage<Error>(HasSubstr("budget above 0")));
}

}  // namespace
}  // namespace attnres::power_law_test
