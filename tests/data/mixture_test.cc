#include "attnres/data/mixture.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <vector>

#include "attnres/support/error.h"

namespace attnres::mixture_test {
namespace {

TEST(Mixture, GivesEachSourceItsShareOfAnyBeginning) {
  const std::vector<double> weights = {0.5, 3, 1.2, 0.001, 2};
  const double sum = 6.701;
  const Mixture mixture(weights);
  std::vector<uint64_t> rows(weights.size());
  for (uint64_t i = 0; i < 20000; ++i) {
    const Mixture::Turn turn = mixture.turn(i);
    ASSERT_EQ(turn.row, rows[turn.source]) << "row " << i << " of source " << turn.source;
    ++rows[turn.source];
    for (size_t k = 0; k < weights.size(); ++k) {
      const double share = static_cast<double>(i + 1) * weights[k] / sum;
      ASSERT_LE(std::abs(static_cast<double>(rows[k]) - share), 5) << i << " " << k;
    }
  }
}

TEST(Mixture, OfOneSourceIsItsRows) {
  const Mixture mixture({0.3});
  for (const uint64_t i : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 61}) {
    EXPECT_EQ(mixture.turn(i).source, 0);
    EXPECT_EQ(mixture.turn(i).row, i);
  }
}

TEST(Mixture, RefusesWeightsThatAreNone) {
  EXPECT_THROW(Mixture({}), UsageError);
  EXPECT_THROW(Mixture({1, 0}), UsageError);
  EXPECT_THROW(Mixture({1, -1}), UsageError);
  EXPECT_THROW(Mixture({1, NAN}), UsageError);
  EXPECT_THROW(Mixture({1, INFINITY}), UsageError);
  EXPECT_THROW(Mixture({1, 1e308}), UsageError);
  const Mixture large({1e308, 1e308});
  EXPECT_NE(large.turn(0).source, large.turn(1).source);
}

}  // namespace
}  // namespace attnres::mixture_test
