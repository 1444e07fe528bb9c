// What the processes of a layout send each other in a step, in bytes: all of them together, as a
// run counts (ParallelTraffic), under every policy of caching.
#pragma once

#include <cstdint>
#include <vector>

#include "attnres/plan/layout.h"

namespace attnres {

struct PolicyTraffic {
  TransferPolicy policy = TransferPolicy::owned;
  // Into all stages of a replica, of a micro-batch: how many sealed tensors cross, the token
  // embedding among them (section 4.1 of arXiv 2603.15031, Eqs. 7 and 8, counts blocks alone), and
  // how many at most into one stage.
  int64_t sealed_tensors = 0, most_sealed_tensors = 0;
  int64_t open_tensors = 0;
  // Bytes of a step.
  double sealed = 0, open = 0;
  double sealed_gradients = 0, open_gradients = 0;

  double total() const { return sealed + open + sealed_gradients + open_gradients; }
};

struct StepTraffic {
  std::vector<PolicyTraffic> policies = {};  // naive, report, owned
  // Within tensor groups: rows that are gathered, partial sums, and their gradients.
  double tensor_groups = 0;
  // Handed to be added up, by all processes: over replicas, and over ranks of a pipeline or of
  // tensor groups that share a parameter.
  double replica_gradients = 0, shared_gradients = 0;
  // Parameters from the replicas that update them to the others, where the optimizer is sharded.
  double replica_parameters = 0;
};

StepTraffic plan_traffic(const PlannedModel& model, const Layout& layout);

// What a tensor group's processes bring together of each token at these sites, in a forward pass:
// gathers and sums, and their numbers. One of n processes sends (n - 1) / n of them.
struct Exchanges {
  double count = 0, numbers = 0;
};
Exchanges exchanges_at(const PlannedModel& model, const SiteRange& sites);
// How often a step does so: forward, backward, and where it is computed again.
double passes_of(const Layout& layout, bool is_output);

// Gradients of parameters that a process adds up with others, in bytes.
struct SummedGradients {
  double over_replicas = 0;
  double over_tensor = 0;  // its tensor group
  double over_ranks = 0;   // of the pipeline
  int most_holders = 1;    // of these ranks
};
// By rank.
std::vector<SummedGradients> summed_gradients(const PlannedModel& model, const Layout& layout,
                                              const PipelinePlan& stages);

// Table 1 of arXiv 2603.15031: numbers that the mixing reads and writes per token and sublayer, in
// units of d (MechanismText::traffic), and those of plain residual connections.
struct MixingTraffic {
  double of_mechanism = 0, of_residual = 0;
};
MixingTraffic mixing_traffic(const ModelConfig& config);

}  // namespace attnres
