// What each device of a replica holds while it trains, in bytes: rank by rank, since replicas are
// alike, and so are the processes of a rank that share its layers.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/plan/layout.h"

namespace attnres {

struct RankMemory {
  std::vector<SiteRange> sites = {};
  int64_t parameters = 0;  // that the rank holds; those that ranks share count on each
  double weights = 0;      // in float32, and in bfloat16 too where products are
  double gradients = 0;
  double moments = 0;  // of the replica with most, where the optimizer is sharded
  // Activations of the micro-batches that are between forward and backward at one time, at the
  // schedule's worst moment, with the backward that runs then; recomputed as the layout says. As
  // ModelCost counts.
  double activations = 0;
  int in_flight = 0;    // stages' activations at once: most_in_flight
  double received = 0;  // copies of received sealed tensors, at most: Pipeline::peak_received_bytes
  // Gradients of sealed tensors, at most, that wait for the backward of the stage of this rank with
  // which the tensor came, or which sealed it.
  double waiting_gradients = 0;
  // The most that the three above are together.
  double in_step = 0;
  // In the place of activations, between steps: of Muon's update and of evaluation.
  // Checkpoints take nothing: each rank writes what it holds.
  double between_steps = 0;

  // What the device must have beside what the cluster calls reserved.
  double total = 0;
};

struct MemoryPlan {
  std::vector<RankMemory> ranks = {};  // of the first replica
  double capacity = 0;                 // of a device, without what is reserved

  bool fits() const;
  // The rank that needs most.
  int fullest() const;
};

MemoryPlan plan_memory(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                       const Cluster& cluster);

}  // namespace attnres
