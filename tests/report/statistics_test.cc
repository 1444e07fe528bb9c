#include "attnres/report/statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "attnres/support/error.h"

namespace attnres::statistics_test {
namespace {

using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

// Hours of sleep that ten patients gained by one drug over the other (Student, Biometrika 6, 1908).
const std::vector<double> kSleep = {1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4};

TEST(SampleDeviation, IsUnbiasedInItsSquare) {
  EXPECT_DOUBLE_EQ(sample_mean({1, 2, 6}), 3);
  EXPECT_DOUBLE_EQ(sample_deviation({1, 2, 6}), std::sqrt(14.0 / 2));
  EXPECT_THROW(sample_deviation({1}), Error);
  EXPECT_THROW(sample_mean({}), Error);
}

// As R's t.test gives them for this data.
TEST(PairedTTest, AgreesWithStudentsOwnExample) {
  const PairedTest test = paired_t_test(kSleep);
  EXPECT_EQ(test.pairs, 10);
  EXPECT_NEAR(test.mean, 1.58, 1e-12);
  EXPECT_NEAR(test.interval.low, 0.7001142, 1e-7);
  EXPECT_NEAR(test.interval.high, 2.4598858, 1e-7);
  EXPECT_NEAR(test.p_value, 0.002833, 5e-7);
  std::vector<double> negated;
  for (double gain : kSleep) negated.push_back(-gain);
  EXPECT_NEAR(paired_t_test(negated).p_value, test.p_value, 1e-15) << "two-sided";
  EXPECT_NEAR(paired_t_test(negated).interval.low, -test.interval.high, 1e-12);
}

// Half an interval's width, in standard errors, is the 97.5 % point that every table prints.
TEST(PairedTTest, IntervalsHaveTheTablesWidth) {
  for (const auto& [pairs, t] : {std::pair{2, 12.706}, {3, 4.303}, {5, 2.776}, {31, 2.042}}) {
    std::vector<double> differences;
    for (int i = 0; i < pairs; ++i) differences.push_back(std::sin(i));
    const PairedTest test = paired_t_test(differences);
    const double error = test.deviation / std::sqrt(double(pairs));
    EXPECT_NEAR((test.interval.high - test.interval.low) / (2 * error), t, 5e-4) << pairs;
    EXPECT_GT(std::abs(t - 1.96), 0.05) << "what a normal distribution would say";
  }
}

TEST(PairedTTest, DifferencesWithoutSpreadAreCertain) {
  EXPECT_EQ(paired_t_test({0, 0, 0}).p_value, 1);
  EXPECT_EQ(paired_t_test({0.5, 0.5}).p_value, 0);
  EXPECT_EQ(paired_t_test({0.5, 0.5}).interval.low, 0.5);
  EXPECT_THROW(paired_t_test({0.5}), Error);
}

// p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") of R; also Wikipedia's example. Bonferroni would
// give 0.04, 0.16, 0.12, 0.02, and without taking the maximum the second would be 0.04.
TEST(HolmAdjusted, StepsDown) {
  EXPECT_THAT(holm_adjusted({0.01, 0.04, 0.03, 0.005}),
              Pointwise(DoubleNear(1e-12), {0.03, 0.06, 0.06, 0.02}));
  EXPECT_THAT(holm_adjusted({0.6, 0.7}), ElementsAre(1, 1));
  EXPECT_THAT(holm_adjusted({0.03}), ElementsAre(0.03));
  EXPECT_TRUE(holm_adjusted({}).empty());
}

// Cohen's table for the paired t test at 5 %, two-sided, power 0.8, as G*Power computes it.
TEST(PairsNeeded, AgreesWithPublishedTables) {
  EXPECT_EQ(pairs_needed(0.2, 1), 199);
  EXPECT_EQ(pairs_needed(0.5, 1), 34);
  EXPECT_EQ(pairs_needed(0.8, 1), 15);
  EXPECT_EQ(pairs_needed(1, 1), 10);
  EXPECT_EQ(pairs_needed(0.005, 0.01), 34) << "only their ratio matters";
  EXPECT_NE(pairs_needed(0.5, 1), std::ceil(std::pow((1.959964 + 0.841621) / 0.5, 2)))
      << "what a normal distribution would say";
}

TEST(PairsNeeded, GoesFromTwoToVeryMany) {
  EXPECT_EQ(pairs_needed(0.005, 0), 2);
  EXPECT_EQ(pairs_needed(1, 1e-9), 2);
  // So many that the normal approximation holds: (1.95996 + 0.84162)^2 for each squared ratio.
  EXPECT_NEAR(double(pairs_needed(0.005, 1)), 7.848880 * 200 * 200, 10);
  EXPECT_EQ(pairs_needed(0.005, 2), kMostPairs);
  EXPECT_EQ(pairs_needed(0.005, 1e100), kMostPairs);
  EXPECT_THROW(pairs_needed(0, 1), Error);
  EXPECT_THROW(pairs_needed(1, NAN), Error);
}

TEST(PercentileInterval, InterpolatesTheMiddle95Percent) {
  std::vector<double> values;
  for (int i = 40; i >= 0; --i) values.push_back(i);
  EXPECT_DOUBLE_EQ(percentile_interval(values).low, 1);
  EXPECT_DOUBLE_EQ(percentile_interval(values).high, 39);
  EXPECT_DOUBLE_EQ(percentile_interval({3, 5}).low, 3.05);
  EXPECT_EQ(percentile_interval({2}).high, 2);
  EXPECT_THROW(percentile_interval({2, NAN}), Error);
}

TEST(Resample, DrawsEveryIndexEquallyOften) {
  const RandomStream stream(1, "test");
  std::vector<int> uses(5);
  for (size_t n = 0; n < 2000; ++n) {
    for (size_t i : resample(5, stream, n)) ++uses.at(i);
  }
  for (int count : uses) EXPECT_NEAR(count, 2000, 5 * std::sqrt(10000 * 0.2 * 0.8));
  EXPECT_NE(resample(5, stream, 0), resample(5, stream, 1));
}

double mean_of(const std::vector<double>& values, const std::vector<size_t>& drawn) {
  double sum = 0;
  for (size_t i : drawn) sum += values[i];
  return sum / double(drawn.size());
}

// The percentile bootstrap of the mean.
Interval bootstrap_of_mean(const std::vector<double>& values, uint64_t seed) {
  const RandomStream stream(seed, "test");
  std::vector<double> means;
  for (size_t n = 0; n < kResamples; ++n) {
    means.push_back(mean_of(values, resample(values.size(), stream, n)));
  }
  return percentile_interval(means);
}

// The mean of 100 values is nearly normal about theirs, with their deviation over the root of 100.
TEST(Bootstrap, OfAMeanIsAsTheCentralLimitTheoremSays) {
  std::vector<double> values;
  const RandomStream noise(7, "values");
  for (uint64_t i = 0; i < 100; ++i) values.push_back(noise.normal(i));
  const Interval interval = bootstrap_of_mean(values, 3);
  const double error = sample_deviation(values) * std::sqrt(0.99) / 10;
  EXPECT_NEAR(interval.low, sample_mean(values) - 1.96 * error, 0.15 * error);
  EXPECT_NEAR(interval.high, sample_mean(values) + 1.96 * error, 0.15 * error);

  const Interval again = bootstrap_of_mean(values, 3);
  EXPECT_EQ(again.low, interval.low);
  EXPECT_EQ(again.high, interval.high);
  EXPECT_NE(bootstrap_of_mean(values, 4).low, interval.low);
}

}  // namespace
}  // namespace attnres::statistics_test
