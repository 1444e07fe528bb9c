// How long a step takes, by simulating the schedule that runs (parallel/schedule.h).
//
//   stage    multiply-adds x 2 / FLOP/s + what activations move / memory bandwidth, as
//            train/estimate/ has them; a backward takes two forwards, three with recomputation
//            and in a tensor group of n, for each gather or sum, (n - 1) / n x bytes / link and a
//            latency, while nothing is computed
//   receive  bytes / link + latency x messages, while the receiver computes something else
//   sums     of n replicas' gradients: 2 (n - 1) / n x bytes / link + 2 log2(n) latencies a bucket
//            (Rabenseifner's algorithm; Thakur et al. 2005, section 4.5); the same for parameters
//            that ranks of a pipeline, or the processes of a tensor group, share. Where the
//            optimizer is sharded, half of it brings gradients to their replica and half parameters
//            to the others
//   update   what it moves / memory bandwidth, and Muon's products
//
// A rank's sums over replicas run beside its last backwards: those of a stage's gradients from the
// beginning of its last backward on, the last bucket after its end. Not in it: reading text,
// evaluation, checkpoints, and links that several messages share.
#pragma once

#include <vector>

#include "attnres/plan/layout.h"

namespace attnres {

// Seconds of each stage.
std::vector<StageTimes> stage_times(const PlannedModel& model, const Layout& layout,
                                    const PipelinePlan& stages, const Cluster& cluster);

struct PipelineTime {
  std::vector<std::vector<TimedAction>> ranks = {};
  std::vector<double> ends = {};  // of each rank's last action
  double seconds = 0;             // until the last of them
  // Time that ranks wait, of the time in which they compute, over all of them: (P - 1) / (V M)
  // where stages take equally long, nothing is on its way and P divides M.
  double bubble = 0;
};
PipelineTime simulate_pipeline(const Layout& layout, const std::vector<StageTimes>& times);

struct StepTime {
  PipelineTime pipeline = {};
  double sums = 0;    // of gradients, after the pipeline's end; updated parameters too
  double update = 0;  // of the slowest rank
  double seconds = 0;
  double tokens_per_second = 0;
  // FLOPs of the model's forward and backward, without what is computed again, over what all
  // devices could do (DeviceFlops): model FLOP utilisation.
  double utilisation = 0;
};
StepTime plan_time(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                   const Cluster& cluster);

}  // namespace attnres
