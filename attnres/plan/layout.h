// How a recipe's model lies on the devices of a cluster, by the parallelism that the program has:
// replicas (parallel.data) of a pipeline (parallel.pipeline, parallel.virtual, parallel.policy).
// Experts are not spread over devices, and no tensor is split.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "attnres/model/model_cost.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/parallel/schedule.h"
#include "attnres/parallel/transfers.h"
#include "attnres/plan/cluster.h"
#include "attnres/train/recipe.h"
#include "attnres/train/training_cost.h"

namespace attnres {

// A recipe's model as plans see it: shapes alone, whatever its size. Made once for any number of
// layouts.
struct PlannedModel {
  // The vocabulary is tokenizer.vocab_size of the recipe.
  explicit PlannedModel(const Recipe& recipe);

  Recipe recipe;
  int64_t vocab_size;
  ModelCost cost;
  std::vector<UpdateCost> updates;  // of cost.parameters()

  // Of a number of the activations: 4, or 2 in bfloat16; and of the gradient of a sealed tensor.
  double activation_bytes = 4, sealed_gradient_bytes = 4;
};

struct Layout {
  int64_t data = 1;  // replicas
  PipelineSize size = {};
  TransferPolicy policy = TransferPolicy::owned;
  bool recompute = false;
  bool shard_optimizer = false;  // over the replicas
  // Of a replica's step.
  int micro_batches = 1;
  int64_t tokens = 0;  // of a micro-batch

  int64_t processes() const { return data * size.ranks; }
  // "4 replicas x 8 ranks x 2 stages, owned, recomputed".
  std::string describe() const;
};

// What recipe.parallel, train.recompute and train.accumulate say.
Layout layout_of(const Recipe& recipe);

// Throws UsageError where the cluster has fewer devices.
void require_devices(const Layout& layout, const Cluster& cluster);

// Whether a replica's ranks a and b lie on one node in every replica, ranks being handed out node
// by node and a replica's one after another.
bool share_node(const Layout& layout, const Cluster& cluster, int a, int b);
// Whether all replicas of each rank do.
bool replicas_share_node(const Layout& layout, const Cluster& cluster);

// The stages that a run of this layout would have, and what crosses between them.
PipelinePlan stages_of(const PlannedModel& model, const Layout& layout);
PipelinePlan stages_of(const PlannedModel& model, const Layout& layout, TransferPolicy policy);

// Calls `add` with each parameter of the model by number, each rank of a replica that holds it, and
// each replica that updates it there (parallel/update_owners.h).
void each_update(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                 const std::function<void(size_t parameter, size_t rank, int64_t replica)>& add);

}  // namespace attnres
