#include "attnres/data/permutation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "attnres/support/error.h"

namespace attnres::permutation_test {
namespace {

std::vector<uint64_t> order(uint64_t n, uint64_t seed = 1, uint64_t epoch = 0) {
  const Permutation permutation(n, seed, epoch);
  std::vector<uint64_t> places;
  for (uint64_t i = 0; i < n; ++i) places.push_back(permutation(i));
  return places;
}

TEST(Permutation, HasEachNumberOnce) {
  for (const uint64_t n : {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 1000, 4097}) {
    std::vector<uint64_t> places = order(n), all(n);
    std::iota(all.begin(), all.end(), 0);
    std::sort(places.begin(), places.end());
    EXPECT_EQ(places, all) << n;
  }
}

TEST(Permutation, IsAnotherForEachSeedAndEpoch) {
  EXPECT_EQ(order(100), order(100));
  EXPECT_NE(order(100, 2), order(100));
  EXPECT_NE(order(100, 1, 1), order(100));
}

// Neighbours in a random order are n / 3 apart in the mean, and the correlation of a number with
// its place is normal with a standard deviation of n^-1/2.
TEST(Permutation, LooksRandom) {
  constexpr double n = 20011;
  for (uint64_t epoch = 0; epoch < 5; ++epoch) {
    const std::vector<uint64_t> places = order(static_cast<uint64_t>(n), 7, epoch);
    double apart = 0, product = 0;
    for (size_t i = 0; i < places.size(); ++i) {
      const double x = static_cast<double>(i), y = static_cast<double>(places[i]);
      if (i > 0) apart += std::abs(y - static_cast<double>(places[i - 1]));
      product += (x - n / 2) * (y - n / 2);
    }
    EXPECT_NEAR(apart / n, n / 3, 0.02 * n);
    EXPECT_LT(std::abs(product / (n * n * n / 12)), 4 / std::sqrt(n));
  }
}

TEST(Permutation, TakesNumbersThatNoMemoryHolds) {
  const uint64_t n = (uint64_t{1} << 40) + 12345;
  const Permutation permutation(n, 1, 0);
  uint64_t largest = 0;
  for (uint64_t i = 0; i < 1000; ++i) largest = std::max(largest, permutation(n - 1 - i));
  EXPECT_LT(largest, n);
  EXPECT_GT(largest, n / 2);
  EXPECT_THROW(Permutation(0, 1, 0), Error);
}

}  // namespace
}  // namespace attnres::permutation_test
