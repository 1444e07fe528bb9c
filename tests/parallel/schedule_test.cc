#include "attnres/parallel/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <tuple>

#include "attnres/support/error.h"
#include "attnres/support/file.h"

namespace attnres::testing::schedule_test {
namespace {

using ::testing::HasSubstr;

void for_each_size(const std::function<void(const PipelineSize&, int)>& see) {
  for (int P = 1; P <= 9; ++P) {
    for (int V = 1; V <= 5; ++V) {
      for (int M = 1; M <= 40; ++M) see({P, V}, M);
    }
  }
  for (int M : {16, 64, 100}) see({16, 3}, M);
}

std::vector<StageTimes> equal_times(const PipelineSize& size, double backward = 1) {
  return std::vector<StageTimes>(size.stages(), {.forward = 1, .backward = backward});
}

double last_end(const std::vector<std::vector<TimedAction>>& ranks) {
  double end = 0;
  for (const auto& actions : ranks) end = std::max(end, actions.back().end);
  return end;
}

TEST(PipelineAction, IsReadAsItIsDescribed) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    const PipelineAction action = {direction, 3, 12};
    EXPECT_EQ(action_of(describe(action)), action);
  }
  for (const char* words : {"", "to rank 1", "forward of micro-batch 3 through stage 1, twice"}) {
    EXPECT_EQ(action_of(words), std::nullopt) << words;
  }
}

// What is wrong with a schedule, in words; empty if nothing is. By itself: it shares no code with
// what made the schedule.
std::string fault(const PipelineSchedule& schedule, const PipelineSize& size, int M) {
  const int C = size.stages();
  if (schedule.size() != static_cast<size_t>(size.ranks)) return "number of ranks";
  // Messages by sender, receiver and direction: sent without waiting, received in order.
  std::map<std::tuple<int, int, bool>, std::vector<std::pair<int, int>>> sent;
  std::map<std::tuple<int, int, bool>, size_t> received;
  std::map<std::tuple<bool, int, int>, int> times_done;
  std::vector<size_t> next(size.ranks);
  for (bool moved = true; moved;) {
    moved = false;
    for (int rank = 0; rank < size.ranks; ++rank) {
      for (; next[rank] < schedule[rank].size(); ++next[rank], moved = true) {
        const auto [direction, stage, m] = schedule[rank][next[rank]];
        if (stage < 0 || stage >= C || m < 0 || m >= M) return "an action that isn't one";
        if (stage % size.ranks != rank) return "another rank's stage";
        const bool back = direction == Direction::backward;
        const int step = back ? -1 : 1, from = stage - step, to = stage + step;
        if (back && times_done[{false, stage, m}] == 0) return "a backward before its forward";
        if (0 <= from && from < C) {
          const std::tuple channel(from % size.ranks, rank, back);
          const size_t taken = received[channel];
          if (taken == sent[channel].size()) break;
          if (sent[channel][taken] != std::pair(stage, m)) return "a message out of order";
          ++received[channel];
        }
        if (++times_done[{back, stage, m}] > 1) return "an action twice";
        if (0 <= to && to < C) {
          sent[{rank, to % size.ranks, back}].emplace_back(to, m);
        }
      }
    }
  }
  for (int rank = 0; rank < size.ranks; ++rank) {
    if (next[rank] < schedule[rank].size()) return "a deadlock";
  }
  for (const bool back : {false, true}) {
    for (int stage = 0; stage < C; ++stage) {
      for (int m = 0; m < M; ++m) {
        if (times_done[{back, stage, m}] != 1) return "an action is missing";
      }
    }
  }
  for (const auto& [channel, messages] : sent) {
    if (received[channel] != messages.size()) return "a message is left";
  }
  return "";
}

TEST(Schedule, DoesEverythingOnceAndNeverWaitsForEver) {
  int seen = 0;
  for_each_size([&](const PipelineSize& size, int M) {
    ++seen;
    ASSERT_EQ(fault(interleaved_1f1b(size, M), size, M), "")
        << size.ranks << " x " << size.virtual_stages << ", " << M << " micro-batches";
  });
  EXPECT_GT(seen, 1500);
}

TEST(Schedule, KeepsFewActivations) {
  for_each_size([&](const PipelineSize& size, int M) {
    const int P = size.ranks, V = size.virtual_stages;
    const PipelineSchedule schedule = interleaved_1f1b(size, M);
    for (int rank = 0; rank < P; ++rank) {
      const int most = std::min(M * V, V == 1 ? P - rank : 2 * (P - 1 - rank) + (V - 1) * P + 1);
      const int seen = most_in_flight(schedule[rank]);
      ASSERT_LE(seen, most) << P << " x " << V << ", " << M << ", rank " << rank;
      if (M % P == 0) {
        ASSERT_EQ(seen, most) << P << " x " << V << ", " << M << ", rank " << rank;
      }
    }
  });
}

// In units of a forward; what a rank computes takes M V (1 + backward).
TEST(Schedule, IdlesAsLongAsTheFormulaSays) {
  for_each_size([&](const PipelineSize& size, int M) {
    const int P = size.ranks, V = size.virtual_stages;
    for (const double backward : {1.0, 2.5}) {
      const auto end_of = [&](int micro_batches) {
        return last_end(
            simulate(interleaved_1f1b(size, micro_batches), size, equal_times(size, backward)));
      };
      const double computing = M * V * (1 + backward), bubble = end_of(M) / computing - 1;
      if (M % P == 0) {
        ASSERT_NEAR(bubble, (P - 1.0) / (V * M), 1e-9) << P << " x " << V << ", " << M;
      } else {
        ASSERT_LE(end_of(M), end_of(M + P - M % P) + 1e-9) << P << " x " << V << ", " << M;
      }
    }
  });
}

TEST(Schedule, IsPlain1F1BWithOneStageARank) {
  for (int P : {1, 2, 4}) {
    for (int M : {1, 3, 4, 9}) {
      const PipelineSchedule schedule = interleaved_1f1b({P, 1}, M);
      for (int rank = 0; rank < P; ++rank) {
        std::vector<PipelineAction> expected;
        const int ahead = P - 1 - rank;
        for (int m = 0; m < M + ahead; ++m) {
          if (m < M) expected.push_back({Direction::forward, rank, m});
          if (m >= ahead) expected.push_back({Direction::backward, rank, m - ahead});
        }
        EXPECT_EQ(schedule[rank], expected) << "rank " << rank << " of " << P << ", " << M;
      }
    }
  }
}

TEST(Schedule, EvaluatesWithItsForwards) {
  const PipelineSize size = {3, 2};
  for (const auto& actions : forwards_of(interleaved_1f1b(size, 5))) {
    EXPECT_EQ(actions.size(), 10u);
    for (const PipelineAction& action : actions) {
      EXPECT_EQ(action.direction, Direction::forward);
    }
  }
  EXPECT_GT(last_end(simulate(forwards_of(interleaved_1f1b(size, 5)), size, equal_times(size))), 9);
}

// Negative control: each of these faults is seen.
TEST(Schedule, FaultsAreNoticed) {
  const PipelineSize size = {3, 2};
  const PipelineSchedule right = interleaved_1f1b(size, 6);
  const auto fault_after = [&](const std::function<void(PipelineSchedule&)>& change) {
    PipelineSchedule wrong = right;
    change(wrong);
    return fault(wrong, size, 6);
  };
  EXPECT_EQ(fault(right, size, 6), "");
  EXPECT_EQ(fault_after([](auto& ranks) { ranks[0].pop_back(); }), "an action is missing");
  EXPECT_EQ(fault_after([](auto& ranks) { ranks[2].push_back(ranks[2].front()); }), "a deadlock");
  EXPECT_EQ(fault_after([](auto& ranks) { ranks[0].push_back(ranks[0].front()); }),
            "an action twice");
  EXPECT_EQ(fault_after([](auto& ranks) { std::swap(ranks[0], ranks[1]); }),
            "another rank's stage");
  EXPECT_EQ(fault_after([](auto& ranks) { std::swap(ranks[0][0], ranks[0][1]); }),
            "a message out of order");
  EXPECT_EQ(fault_after([](auto& ranks) { std::reverse(ranks[2].begin(), ranks[2].end()); }),
            "a backward before its forward");
  // Later stages first.
  EXPECT_EQ(fault_after([](auto& ranks) {
              for (auto& actions : ranks) {
                std::stable_partition(actions.begin(), actions.end(),
                                      [](const auto& action) { return action.stage >= 3; });
              }
            }),
            "a deadlock");
}

TEST(Schedule, SimulationNamesWhoWaitsForEver) {
  PipelineSchedule schedule = interleaved_1f1b({2, 1}, 2);
  std::swap(schedule[0].front(), schedule[0].back());
  try {
    simulate(schedule, {2, 1}, equal_times({2, 1}));
    FAIL() << "a deadlock went unnoticed";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 0: backward of micro-batch 1 through stage 0"));
    EXPECT_THAT(error.what(), HasSubstr("rank 1: forward of micro-batch 0 through stage 1"));
  }
}

TEST(Schedule, WaitsForWhatIsOnItsWay) {
  const PipelineSize size = {2, 1};
  const std::vector<StageTimes> times = {
      {.forward = 1, .backward = 2, .receive = 100, .give_back = 100},
      {.forward = 3, .backward = 4, .receive = 0.5, .give_back = 1.5}};
  const auto ranks = simulate(interleaved_1f1b(size, 1), size, times);
  EXPECT_EQ(ranks[1][0].begin, 1.5);
  EXPECT_EQ(ranks[1][1].begin, 4.5);
  EXPECT_EQ(ranks[0][1].begin, 10);
  EXPECT_EQ(last_end(ranks), 12);
}

TEST(Schedule, RefusesSizesThatAreNone) {
  EXPECT_THROW(interleaved_1f1b({0, 1}, 1), UsageError);
  EXPECT_THROW(interleaved_1f1b({1024, 2}, 1 << 24), UsageError);
  EXPECT_THROW(interleaved_1f1b({1, 0}, 1), UsageError);
  EXPECT_THROW(interleaved_1f1b({1, 1}, 0), UsageError);
}

// A row a rank and a column for each unit of time: "3a" is the forward of micro-batch 3 through the
// rank's first stage, "3B" the backward through its second; "." while it waits. Micro-batches count
// from 1, as in the report's Fig. 3.
std::string draw(const std::vector<std::vector<TimedAction>>& ranks, const PipelineSize& size) {
  double end = 0;
  size_t width = 1;
  const auto cell = [&](const PipelineAction& action) {
    const char first = action.direction == Direction::forward ? 'a' : 'A';
    return fmt::format("{}{}", action.micro_batch + 1,
                       static_cast<char>(first + action.stage / size.ranks % 26));
  };
  for (const auto& actions : ranks) {
    for (const TimedAction& timed : actions) {
      end = std::max(end, timed.end);
      width = std::max(width, cell(timed.action).size());
    }
  }
  std::string drawing;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::vector<std::string> columns(std::lround(end), ".");
    for (const TimedAction& timed : ranks[rank]) {
      for (int64_t t = std::lround(timed.begin); t < std::lround(timed.end); ++t) {
        columns[t] = cell(timed.action);
      }
    }
    std::string row = fmt::format("rank {}", rank);
    for (const std::string& column : columns) row += fmt::format(" {:>{}}", column, width);
    drawing += row + "\n";
  }
  return drawing;
}

TEST(Schedule, IsDrawn) {
  const PipelineSize size = {2, 2};
  EXPECT_EQ(draw(simulate(interleaved_1f1b(size, 2), size, equal_times(size, 2)), size),
            "rank 0 1a 2a 1b 2b  .  . 1B 1B  . 2B 2B 1A 1A 2A 2A\n"
            "rank 1  . 1a 2a 1b 1B 1B 2b 2B 2B 1A 1A 2A 2A  .  .\n");
}

// docs/parallel.md shows what is drawn.
TEST(Schedule, IsDrawnInItsPage) {
  const PipelineSize size = {4, 2};
  EXPECT_THAT(read_file(ATTNRES_SOURCE_DIR "/docs/parallel.md"),
              HasSubstr("```text\n" +
                        draw(simulate(interleaved_1f1b(size, 4), size, equal_times(size)), size) +
                        "```\n"));
}

}  // namespace
}  // namespace attnres::testing::schedule_test
