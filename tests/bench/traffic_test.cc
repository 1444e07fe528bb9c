// What the kernels read and write against the closed form of docs/depth-attention.md, exactly; and
// that the count sees what should not be there.
#include "bench/traffic.h"

#include <gtest/gtest.h>

#include <array>

namespace attnres::bench {
namespace {

constexpr size_t kCache = size_t{1} << 20;

// Counts 48 among 4096 tokens; tensors are large enough to be streamed if rows have 512 channels.
TrafficCounter counter(int64_t width = 512, size_t cache = kCache) {
  return {4096, 48, width, cache};
}

void expect_equal(const Traffic& actual, const Traffic& expected) {
  EXPECT_EQ(actual.read, expected.read);
  EXPECT_EQ(actual.written, expected.written);
  EXPECT_EQ(actual.fetched, expected.fetched);
}

double number(int64_t count) {
  return static_cast<double>(count);
}

TEST(Traffic, PhaseOneReadsEverySourceOnceForAllSites) {
  for (const int64_t sources : {1, 5, 9, 12, 13, 33}) {
    for (const int64_t sites : {1, 3, 4, 11, 16}) {
      SCOPED_TRACE(::testing::Message() << sources << " sources, " << sites << " sites");
      const double N = number(sources), S = number(sites);
      expect_equal(counter().phase_one_forward(sources, sites), {.read = N, .written = S});
      // Small tensors are stored through the cache.
      expect_equal(counter(64).phase_one_forward(sources, sites),
                   {.read = N, .written = S, .fetched = S});
    }
  }
}

TEST(Traffic, PhaseOneBackwardReadsSourcesSlotsAndOutputGradientsOnce) {
  for (const int64_t sources : {1, 2, 5, 12, 13, 33}) {
    for (const int64_t sites : {1, 3, 4, 11, 16}) {
      SCOPED_TRACE(::testing::Message() << sources << " sources, " << sites << " sites");
      const double N = number(sources), S = number(sites);
      expect_equal(counter().phase_one_backward(sources, sites, sources),
                   {.read = 2 * N + S, .written = N});
      // Nothing to add to: streamed where all sites are served in one turn.
      expect_equal(counter().phase_one_backward(sources, sites, 0),
                   {.read = N + S, .written = N, .fetched = sites > 4 ? N : 0});
    }
  }
}

TEST(Traffic, PhaseTwoReadsEveryRowOnce) {
  for (const int64_t finished : {0, 1, 4}) {
    for (const bool earlier : {false, true}) {
      for (const int outputs : {0, 1, 2}) {  // pending, partial and pending
        const SiteTensors site = {.finished = finished,
                                  .earlier = earlier,
                                  .partial = outputs > 1,
                                  .pending = outputs > 0};
        if (!earlier && site.recent() == 0) continue;
        SCOPED_TRACE(::testing::Message() << finished << " finished, " << outputs << " outputs"
                                          << (earlier ? ", earlier" : ""));
        const double K = number(site.recent()), E = earlier ? 1 : 0, sum = outputs > 1 ? 1 : 0;
        expect_equal(
            counter().phase_two_forward(site),
            {.read = E + number(finished) + outputs, .written = 1 + sum, .fetched = 1 + sum});
        const bool later = outputs > 0;
        expect_equal(counter().phase_two_backward(site, later, finished),
                     {.read = 2 + K + number(finished) + later,
                      .written = E + K,
                      .fetched = later ? 1. : 0.});
      }
    }
  }
}

TEST(Traffic, ResidualAddsAndNormalizesInOnePass) {
  expect_equal(counter().rms_norm_forward(true), {.read = 2, .written = 2, .fetched = 2});
  expect_equal(counter().rms_norm_forward(false), {.read = 1, .written = 1, .fetched = 1});
  expect_equal(counter().rms_norm_backward(true), {.read = 3, .written = 1, .fetched = 1});
}

// Rows that begin and end inside of cache lines.
TEST(Traffic, WidthsThatFillNoLine) {
  const Traffic all = counter(37).phase_one_forward(5, 3);
  EXPECT_NEAR(all.read, 5, 0.1);
  EXPECT_NEAR(all.written, 3, 0.1);
}

// A kernel that looks at one row more.
TEST(TrafficMistakes, AnExtraReadIsSeen) {
  TrafficCounter one = counter();
  const Counted *a = one.tensor(), *b = one.tensor(), *extra = one.tensor();
  float sum = 0;
  const auto add_dot = [&](const Counted* x, const Counted* y) {
    float dot = 0, *sums[] = {&dot};
    kernels::dots<1, false>(x, std::array<const Counted*, kernels::kSitesATurn>{y}, 512, sums,
                            static_cast<float*>(nullptr));
    sum += dot;
  };
  const auto kernel = [&](bool careless) {
    for (int64_t t = 0; t < 48; ++t) {
      add_dot(a + t * 512, b + t * 512);
      if (careless) add_dot(a + t * 512, extra + t * 512);
    }
  };
  expect_equal(one.count([&] { kernel(false); }), {.read = 2});
  expect_equal(one.count([&] { kernel(true); }), {.read = 3});
  EXPECT_EQ(sum, 3 * 48 * 512);
}

// What the schedule and the tiles save, undone.
TEST(TrafficMistakes, SitesOneByOneAndTooLargeTilesAreSeen) {
  Traffic one_by_one;
  for (int site = 0; site < 3; ++site) one_by_one += counter().phase_one_forward(9, 1);
  expect_equal(one_by_one, {.read = 27, .written = 3});
  EXPECT_GT(counter(512, kCache / 32).phase_one_forward(9, 3).read, 15);
}

TEST(CacheModel, EvictsTheLeastRecentlyUsedLine) {
  alignas(64) char memory[4 * 64];
  CacheModel cache(2 * 64);
  cache.load(&memory[0], 4);
  cache.load(&memory[64], 64);
  cache.load(&memory[60], 4);   // a hit: line 0 is the newest
  cache.load(&memory[128], 1);  // instead of line 1
  cache.load(&memory[0], 64);
  EXPECT_EQ(cache.finish(), (Traffic{.read = 3 * 64}));
  cache.load(&memory[60], 8);  // two lines
  cache.store(&memory[64], 8);
  cache.load(&memory[128], 1);
  cache.load(&memory[192], 1);  // line 1 is written back
  cache.store(&memory[0], 1);
  cache.stream(&memory[128], 64);
  EXPECT_EQ(cache.finish(), (Traffic{.read = 4 * 64, .written = 3 * 64, .fetched = 64}));
}

}  // namespace
}  // namespace attnres::bench
