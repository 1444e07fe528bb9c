#include "attnres/support/told_numbers.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace attnres::told_numbers_test {
namespace {

TEST(ToldNumbers, CountsAreWholeAndHeldByDoubles) {
  EXPECT_EQ(count_in(0), 0);
  EXPECT_EQ(count_in(int64_t{1} << 53), int64_t{1} << 53);
  for (const Json& other : {Json((int64_t{1} << 53) + 1), Json(-1), Json(1.0), Json(UINT64_MAX),
                            Json("1"), Json(), Json::array({1})}) {
    EXPECT_FALSE(count_in(other)) << other;
  }
}

TEST(ToldNumbers, MeasuredOnesHaveSquaresAndRatios) {
  for (const double number : {0.0, 2.5, -1e100, 1e100, 1e-100}) {
    EXPECT_EQ(measured_in(number), number);
  }
  EXPECT_EQ(measured_in(7), 7);
  EXPECT_EQ(measured_in(-1e-101), 0);
  EXPECT_TRUE(std::signbit(measured_in(-0.0)));
  for (const Json& other : {Json(1.1e100), Json(-1e308), Json("2"), Json(), Json::object()}) {
    EXPECT_TRUE(std::isnan(measured_in(other))) << other;
  }
}

}  // namespace
}  // namespace attnres::told_numbers_test
