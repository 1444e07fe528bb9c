// In which order the ranks of a pipeline compute: interleaved 1F1B (Narayanan et al., arXiv
// 2104.04473, section 2.2), as data that who runs it, simulates it, draws it and tests it share.
//
// A model in C = P V stages, one after another, lies on P ranks with V stages each: stage c is the
// virtual stage floor(c / P) of rank c mod P. A step has M micro-batches, each of which goes
// forward through the stages 0 .. C-1 and then backward. Once a rank has begun enough of them to
// keep the others busy it does one forward and one backward in turns: with V = 1 this is plain
// 1F1B.
//
// Where all forwards take equally long, and all backwards, a rank idles for (P - 1) / (V M) of the
// time in which it computes, if P divides M; it is never later than with the next multiple of P.
// Rank r has at most min(M V, 2 (P - 1 - r) + (V - 1) P + 1) stages' activations at once, and with
// V = 1 at most min(M, P - r).
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace attnres {

struct PipelineSize {
  int ranks = 1;           // P
  int virtual_stages = 1;  // V, of each rank

  int stages() const { return ranks * virtual_stages; }  // C
  int rank_of(int stage) const { return stage % ranks; }
};

enum class Direction { forward, backward };

struct PipelineAction {
  Direction direction = Direction::forward;
  int stage = 0;
  int micro_batch = 0;

  bool operator==(const PipelineAction&) const = default;
};
// "forward of micro-batch 3 through stage 1".
std::string describe(const PipelineAction& action);
// What describe has said; none of other words.
std::optional<PipelineAction> action_of(const std::string& description);

// By rank: what it does, one after another. An action waits for the one before it in its
// micro-batch's way, and for nothing else. Between two ranks and in one direction micro-batches'
// states leave in the order in which they are taken up.
using PipelineSchedule = std::vector<std::vector<PipelineAction>>;

// Throws UsageError where a number is not positive, or they make millions of actions.
PipelineSchedule interleaved_1f1b(const PipelineSize& size, int micro_batches);
// The forwards of it alone, as evaluation does them.
PipelineSchedule forwards_of(const PipelineSchedule& schedule);

// The most stages' activations that a rank has at once, from a forward to its backward.
int most_in_flight(const std::vector<PipelineAction>& actions);

// What a stage takes, in any unit of time.
struct StageTimes {
  double forward = 1, backward = 1;
  double receive = 0;    // of what crosses into the stage
  double give_back = 0;  // of its gradients, on their way to the stage before
};

struct TimedAction {
  PipelineAction action;
  double begin = 0, end = 0;
};

// By rank: when each action runs where each begins as soon as its rank has done the one before it
// and what it waits for has arrived; `times` of each stage. Throws Error, naming what waits, where
// a rank would wait for ever.
std::vector<std::vector<TimedAction>> simulate(const PipelineSchedule& schedule,
                                               const PipelineSize& size,
                                               const std::vector<StageTimes>& times);

}  // namespace attnres
