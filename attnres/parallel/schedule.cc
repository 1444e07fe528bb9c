#include "attnres/parallel/schedule.h"

#include <algorithm>
#include <cstdint>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr int64_t kMostActions = 1 << 22;  // of a step

// The action whose result this one takes up; none where it begins a micro-batch.
std::optional<PipelineAction> waits_for(PipelineAction action, const PipelineSize& size) {
  if (action.direction == Direction::forward) {
    if (action.stage-- == 0) return std::nullopt;
  } else if (action.stage == size.stages() - 1) {
    action.direction = Direction::forward;
  } else {
    ++action.stage;
  }
  return action;
}

}  // namespace

std::string describe(const PipelineAction& action) {
  return fmt::format("{} of micro-batch {} through stage {}",
                     action.direction == Direction::forward ? "forward" : "backward",
                     action.micro_batch, action.stage);
}

std::optional<PipelineAction> action_of(const std::string& description) {
  PipelineAction action;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    action.direction = direction;
    const std::string name = direction == Direction::forward ? "forward" : "backward";
    const std::string pattern = name + " of micro-batch %d through stage %d";
    if (std::sscanf(description.c_str(), pattern.c_str(), &action.micro_batch, &action.stage) ==
            2 &&
        describe(action) == description) {
      return action;
    }
  }
  return std::nullopt;
}

PipelineSchedule interleaved_1f1b(const PipelineSize& size, int micro_batches) {
  const int P = size.ranks, V = size.virtual_stages;
  require_usage(P > 0 && V > 0 && micro_batches > 0,
                "pipeline: expected one rank, virtual stage and micro-batch or more, got {}, {} "
                "and {}",
                P, V, micro_batches);
  require_usage(int64_t{2} * P * V * micro_batches <= kMostActions,
                "pipeline: {} micro-batches through {} stages are too many to be laid out one by "
                "one; lower train.accumulate",
                micro_batches, P * V);
  // Micro-batches go through a rank's stages in groups of P. What is left of the last group is
  // scheduled as if it were whole: nothing waits for a micro-batch that isn't there.
  const int groups = (micro_batches + P - 1) / P, total = groups * P * V;
  PipelineSchedule schedule(P);
  for (int rank = 0; rank < P; ++rank) {
    const auto add = [&](Direction direction, int k) {
      const int micro_batch = k / (P * V) * P + k % P;
      const int turn = k % (P * V) / P;
      const int virtual_stage = direction == Direction::forward ? turn : V - 1 - turn;
      if (micro_batch < micro_batches) {
        schedule[rank].push_back({direction, virtual_stage * P + rank, micro_batch});
      }
    };
    const int later = P - 1 - rank;  // ranks
    const int ahead = std::min(total, V == 1 ? later : 2 * later + (V - 1) * P);
    for (int k = 0; k < total + ahead; ++k) {
      if (k < total) add(Direction::forward, k);
      if (k >= ahead) add(Direction::backward, k - ahead);
    }
  }
  return schedule;
}

PipelineSchedule forwards_of(const PipelineSchedule& schedule) {
  PipelineSchedule forwards = schedule;
  for (auto& actions : forwards) {
    std::erase_if(actions, [](const PipelineAction& action) {
      return action.direction == Direction::backward;
    });
  }
  return forwards;
}

int most_in_flight(const std::vector<PipelineAction>& actions) {
  int now = 0, most = 0;
  for (const PipelineAction& action : actions) {
    now += action.direction == Direction::forward ? 1 : -1;
    most = std::max(most, now);
  }
  return most;
}

std::vector<std::vector<TimedAction>> simulate(const PipelineSchedule& schedule,
                                               const PipelineSize& size,
                                               const std::vector<StageTimes>& times) {
  require(schedule.size() == static_cast<size_t>(size.ranks) &&
              times.size() == static_cast<size_t>(size.stages()),
          "pipeline: expected actions of {} ranks and times of {} stages, got {} and {}",
          size.ranks, size.stages(), schedule.size(), times.size());
  int micro_batches = 0;
  for (const auto& actions : schedule) {
    for (const PipelineAction& action : actions) {
      micro_batches = std::max(micro_batches, action.micro_batch + 1);
    }
  }
  // When an action's result is there for whom it is for; negative before.
  std::vector<double> ready(size_t{2} * size.stages() * micro_batches, -1);
  const auto place = [&](const PipelineAction& action) {
    const size_t stage =
        action.stage + (action.direction == Direction::forward ? 0 : size.stages());
    return stage * micro_batches + action.micro_batch;
  };
  const auto on_the_way = [&](const PipelineAction& done) {
    if (size.ranks == 1) return 0.0;
    if (done.direction == Direction::backward) return times[done.stage].give_back;
    return done.stage + 1 < size.stages() ? times[done.stage + 1].receive : 0.0;
  };

  std::vector<std::vector<TimedAction>> done(schedule.size());
  for (bool moved = true; moved;) {
    moved = false;
    for (size_t rank = 0; rank < schedule.size(); ++rank) {
      while (done[rank].size() < schedule[rank].size()) {
        const PipelineAction& action = schedule[rank][done[rank].size()];
        double begin = done[rank].empty() ? 0 : done[rank].back().end;
        if (const auto before = waits_for(action, size)) {
          const double arrival = ready[place(*before)];
          if (arrival < 0) break;
          begin = std::max(begin, arrival);
        }
        const StageTimes& stage = times[action.stage];
        const double end =
            begin + (action.direction == Direction::forward ? stage.forward : stage.backward);
        done[rank].push_back({action, begin, end});
        ready[place(action)] = end + on_the_way(action);
        moved = true;
      }
    }
  }
  std::string waiting;
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    if (done[rank].size() == schedule[rank].size()) continue;
    waiting += fmt::format("\n  rank {}: {}", rank, describe(schedule[rank][done[rank].size()]));
  }
  require(waiting.empty(), "pipeline: with this schedule ranks wait for each other for ever:{}",
          waiting);
  return done;
}

}  // namespace attnres
