#include "attnres/parallel/together.h"

#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>

#include "tests/parallel/thread_communicator.h"
#include "tests/text/test_files.h"

namespace attnres::testing::together_test {
namespace {

TEST(DoTogether, ThrowsOnAllWhatOneThrew) {
  std::atomic<int> told = 0;
  const auto work = [&](const std::vector<int>& failing) {
    run_on_threads(4, [&](Communicator& world) {
      bool is_failing = false;
      for (const int rank : failing) is_failing |= rank == world.rank();
      try {
        do_together(world, [&] { require(!is_failing, "no room at {}", world.rank()); });
      } catch (const CommonFailure&) {
        ++told;
        throw;
      }
    });
  };
  EXPECT_NO_THROW(work({}));
  EXPECT_EQ(told, 0);
  EXPECT_EQ(message_of<CommonFailure>([&] { work({3, 2}); }), "rank 2: no room at 2");
  EXPECT_EQ(told, 4);
  EXPECT_EQ(message_of<CommonFailure>([&] { work({0, 1}); }), "no room at 0");
}

TEST(DifferencesBetweenRanks, NameRankAndKey) {
  run_on_threads(3, [](Communicator& world) {
    EXPECT_EQ(differences_between_ranks(world, {{"a", 1}}), "");
    EXPECT_EQ(differences_between_ranks(world, {{"a", 1}, {"b", {{"c", world.rank() % 2}}}}),
              "\n  rank 1: b.c: 0 -> 1");
  });
}

}  // namespace
}  // namespace attnres::testing::together_test
