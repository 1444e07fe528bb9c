#include "attnres/report/speed.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

namespace attnres {
namespace {

using ::testing::HasSubstr;

std::vector<Metric> steps(const std::vector<double>& speeds) {
  std::vector<Metric> out;
  for (double speed : speeds) {
    out.emplace_back().step = int64_t(out.size());
    out.back().tokens_per_second = speed;
  }
  return out;
}

// A tenth to warm up, and nine tenths at `speed`.
std::vector<double> steady(double speed) {
  std::vector<double> out(100, speed);
  std::fill_n(out.begin(), 10, speed / 10);
  return out;
}

TEST(MeasureSpeed, LeavesOutTheWarmUp) {
  const Speed speed = measure_speed(steps(steady(1000)));
  EXPECT_NEAR(speed.tokens_per_second, 1000, 1e-9);
  EXPECT_EQ(speed.undisturbed, 10);
  EXPECT_NEAR(speed.spread, 0, 1e-12);
  EXPECT_TRUE(speed.well_measured());
}

// With equally many tokens at 500 and at 2000 a second, a second holds 800.
TEST(MeasureSpeed, AnIntervalsSpeedIsItsTokensOverItsTime) {
  std::vector<double> speeds = steady(1000);
  for (size_t i = 10; i < 100; ++i) speeds[i] = i % 3 == 0 ? 2000 : 500;
  // Nine steps an interval: three of 2000 and six of 500.
  EXPECT_NEAR(measure_speed(steps(speeds)).tokens_per_second, 9 / (3 / 2000.0 + 6 / 500.0), 1e-9);
}

TEST(MeasureSpeed, TwoDisturbedIntervalsAreBorneAndThreeAreNot) {
  std::vector<double> speeds = steady(1000);
  for (size_t i = 10; i < 28; ++i) speeds[i] = 700;
  const Speed two = measure_speed(steps(speeds));
  EXPECT_EQ(two.undisturbed, 8);
  EXPECT_TRUE(two.well_measured());
  EXPECT_NEAR(two.tokens_per_second, 1000, 1e-9);
  for (size_t i = 28; i < 37; ++i) speeds[i] = 700;
  const Speed three = measure_speed(steps(speeds));
  EXPECT_FALSE(three.well_measured());
  EXPECT_THAT(why_not_measured(three), HasSubstr("only 7 of 10 intervals within 5 %"));
}

TEST(MeasureSpeed, AFewStepsGiveAFigureButNoMeasurement) {
  const Speed few = measure_speed(steps({1, 10, 20, NAN, 30}));
  EXPECT_EQ(few.tokens_per_second, 20);
  EXPECT_FALSE(few.well_measured());
  EXPECT_EQ(why_not_measured(few), "logged too few steps");
  EXPECT_TRUE(std::isnan(measure_speed({}).tokens_per_second));
}

TEST(SpeedRatio, HasTheMarginOfBothSpreads) {
  std::vector<double> uneven = steady(500);
  for (size_t i = 10; i < 55; ++i) uneven[i] = 490;  // the median is 495
  const Speed slow = measure_speed(steps(uneven)), fast = measure_speed(steps(steady(1000)));
  EXPECT_NEAR(speed_ratio(slow, fast).ratio, 0.495, 1e-9);
  EXPECT_NEAR(speed_ratio(slow, fast).margin, 0.005, 1e-9);
  EXPECT_TRUE(std::isnan(speed_ratio(slow, Speed{.tokens_per_second = 10}).ratio));
}

TEST(JointSpeed, CoversTheRunsThatWereMeasuredWell) {
  const Speed a = measure_speed(steps(steady(900))), b = measure_speed(steps(steady(1100)));
  const Speed joint = joint_speed({a, Speed{.tokens_per_second = 1}, b});
  EXPECT_TRUE(joint.well_measured());
  EXPECT_NEAR(joint.tokens_per_second, 1000, 1e-9);
  EXPECT_NEAR(joint.spread, 0.1, 1e-9);
  EXPECT_FALSE(joint_speed({Speed{.tokens_per_second = 1}}).well_measured());
}

}  // namespace
}  // namespace attnres
