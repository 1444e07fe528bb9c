// How a recipe's model lies on the devices of a cluster, by the parallelism that the program has:
// replicas (parallel.data) of a pipeline (parallel.pipeline, parallel.virtual, parallel.policy),
// whose ranks are each processes that share every layer (parallel.tensor). Experts are not spread
// over devices.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attnres/model/model_cost.h"
#include "attnres/parallel/pipeline.h"
#include "attnres/parallel/schedule.h"
#include "attnres/parallel/transfers.h"
#include "attnres/plan/cluster.h"
#include "attnres/train/estimate/training_cost.h"
#include "attnres/train/recipe/recipe.h"

namespace attnres {

// A recipe's model as plans see it: shapes alone, whatever its size. Made once for any number of
// layouts.
struct PlannedModel {
  // The vocabulary is tokenizer.vocab_size of the recipe.
  explicit PlannedModel(const Recipe& recipe);

  // The model, or what each of `tensor` processes has that share every layer.
  struct Part {
    ModelCost cost;
    std::vector<UpdateCost> updates;  // of cost.parameters()
  };
  // Made when it is first asked for. Throws UsageError where so many cannot share it equally.
  const Part& part(int64_t tensor) const;

  const ModelCost& cost() const { return part(1).cost; }

  Recipe recipe;
  int64_t vocab_size;
  // Bytes of a number of the activations: 4, or 2 in bfloat16; and of a sealed tensor's gradient.
  double activation_bytes = 4, sealed_gradient_bytes = 4;

 private:
  mutable std::map<int64_t, std::unique_ptr<const Part>> parts_;
};

struct Layout {
  int64_t data = 1;  // replicas
  PipelineSize size = {};
  int64_t tensor = 1;  // processes of each rank of the pipeline
  TransferPolicy policy = TransferPolicy::owned;
  bool recompute = false;
  bool shard_optimizer = false;  // over the replicas
  // A replica's step has these.
  int micro_batches = 1;
  int64_t tokens = 0;  // of a micro-batch

  int64_t processes() const { return data * size.ranks * tensor; }
  // "4 replicas x 8 ranks x 2 stages, owned, recomputed".
  std::string describe() const;
};

// What recipe.parallel, train.recompute and train.accumulate say.
Layout layout_of(const Recipe& recipe);

// Throws UsageError where the cluster has fewer devices.
void require_devices(const Layout& layout, const Cluster& cluster);

// Whether the processes of a replica's ranks a and b that talk to each other lie on one node in
// every replica, processes being handed out node by node, a rank's and a replica's one after
// another.
bool share_node(const Layout& layout, const Cluster& cluster, int a, int b);
// Whether the processes of each rank do that share its layers.
bool tensor_groups_share_node(const Layout& layout, const Cluster& cluster);
// Whether all replicas of each rank do.
bool replicas_share_node(const Layout& layout, const Cluster& cluster);

// The stages that a run of this layout would have, and what crosses between them.
PipelinePlan stages_of(const PlannedModel& model, const Layout& layout);
PipelinePlan stages_of(const PlannedModel& model, const Layout& layout, TransferPolicy policy);

// Calls `add` with each parameter of the model by number, each rank of a replica that holds it, and
// the replica that updates it there (parallel/update_owners.h): 0 where all do, which are alike.
void each_update(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                 const std::function<void(size_t parameter, size_t rank, int64_t replica)>& add);

}  // namespace attnres
