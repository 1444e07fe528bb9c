#include "attnres/train/recipe/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

namespace attnres::schedule_test {
namespace {

TrainConfig config(const char* schedule) {
  TrainConfig train;
  train.steps = 110;
  train.warmup = 10;
  train.learning_rate = 2;
  train.final_fraction = 0.1;
  train.decay_fraction = 0.2;
  train.schedule = schedule;
  return train;
}

TEST(Schedule, WarmsUpLinearly) {
  for (const char* schedule : {"cosine", "wsd"}) {
    for (int step = 1; step <= 10; ++step) {
      EXPECT_DOUBLE_EQ(learning_rate_at(config(schedule), step), 0.2 * step);
    }
  }
}

TEST(Schedule, Cosine) {
  const TrainConfig train = config("cosine");
  EXPECT_NEAR(learning_rate_at(train, 35), 2 * (0.1 + 0.45 * (1 + std::numbers::sqrt2 / 2)), 1e-12);
  EXPECT_NEAR(learning_rate_at(train, 60), 2 * 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_at(train, 110), 0.2, 1e-12);
}

TEST(Schedule, WarmupStableDecay) {
  const TrainConfig train = config("wsd");  // decays over the last 22 steps
  EXPECT_DOUBLE_EQ(learning_rate_at(train, 11), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(train, 88), 2);
  EXPECT_NEAR(learning_rate_at(train, 99), 2 * 0.55, 1e-12);
  EXPECT_NEAR(learning_rate_at(train, 110), 0.2, 1e-12);
}

TEST(Schedule, WithoutWarmupOrDecay) {
  TrainConfig train = config("wsd");
  train.warmup = 0;
  train.decay_fraction = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(train, 1), 2);
  EXPECT_DOUBLE_EQ(learning_rate_at(train, 110), 2);
}

TEST(Schedule, NothingButWarmup) {
  TrainConfig train = config("cosine");
  train.steps = train.warmup = 10;
  EXPECT_DOUBLE_EQ(learning_rate_at(train, 10), 2);
}

}  // namespace
}  // namespace attnres::schedule_test
