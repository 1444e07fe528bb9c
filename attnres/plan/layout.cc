#include "attnres/plan/layout.h"

#include <c10/core/ScalarType.h>

#include <algorithm>

#include "attnres/ops/tensors.h"
#include "attnres/parallel/update_owners.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {

PlannedModel::PlannedModel(const Recipe& recipe)
    : recipe(recipe), vocab_size(recipe.tokenizer.vocab_size) {
  const at::ScalarType activations = precision_of(recipe.train).activations;
  activation_bytes = static_cast<double>(c10::elementSize(activations));
  sealed_gradient_bytes = static_cast<double>(c10::elementSize(compute_dtype(activations)));
}

const PlannedModel::Part& PlannedModel::part(int64_t tensor) const {
  std::unique_ptr<const Part>& part = parts_[tensor];
  if (part == nullptr) {
    ModelCost cost(recipe.model, vocab_size, static_cast<int>(tensor));
    std::vector<UpdateCost> updates =
        update_costs(cost.parameters(), cost.sublayers(), recipe.train);
    part = std::make_unique<const Part>(Part{std::move(cost), std::move(updates)});
  }
  return *part;
}

std::string Layout::describe() const {
  std::string text = fmt::format("{} x {}", counted(data, "replica"), counted(size.ranks, "rank"));
  if (tensor > 1) text += fmt::format(" of {} processes", tensor);
  if (size.virtual_stages > 1) text += fmt::format(" x {} stages", size.virtual_stages);
  if (size.ranks > 1) text += ", " + name_of(policy);
  if (recompute) text += ", recomputed";
  if (shard_optimizer) text += ", optimizer sharded";
  return text;
}

Layout layout_of(const Recipe& recipe) {
  const ParallelConfig& parallel = recipe.parallel;
  const TrainConfig& train = recipe.train;
  return {.data = parallel.data,
          .size = {static_cast<int>(parallel.pipeline), static_cast<int>(parallel.virtual_stages)},
          .tensor = parallel.tensor,
          .policy = transfer_policy(parallel.policy),
          .recompute = train.recompute,
          .shard_optimizer = parallel.shard_optimizer && parallel.data > 1,
          .micro_batches = static_cast<int>(train.accumulate / parallel.data),
          .tokens = train.batch_size / train.accumulate * train.context};
}

void require_devices(const Layout& layout, const Cluster& cluster) {
  require_usage(layout.processes() <= cluster.devices,
                "parallel.data x parallel.pipeline x parallel.tensor: {} x {} x {} are {} "
                "processes, but cluster {} has {}; make them fewer, or let --search choose",
                layout.data, layout.size.ranks, layout.tensor, layout.processes(), cluster.name,
                counted(cluster.devices, "device"));
}

bool share_node(const Layout& layout, const Cluster& cluster, int a, int b) {
  if (a == b) return true;
  const int64_t node = cluster.devices_per_node;
  // After so many replicas they lie in their nodes as the first ones do.
  const int64_t different = std::min(layout.data, node);
  for (int64_t replica = 0; replica < different; ++replica) {
    // Of the processes from the first of one rank to the last of the other, each but the first
    // begins what two that talk lie on either side of.
    const int64_t begin = (replica * layout.size.ranks + std::min(a, b)) * layout.tensor;
    const int64_t end = (replica * layout.size.ranks + std::max(a, b) + 1) * layout.tensor;
    if (begin / node != (end - 1) / node) return false;
  }
  return true;
}

bool tensor_groups_share_node(const Layout& layout, const Cluster& cluster) {
  return replicas_share_node(layout, cluster) || cluster.devices_per_node % layout.tensor == 0;
}

bool replicas_share_node(const Layout& layout, const Cluster& cluster) {
  return layout.processes() <= cluster.devices_per_node;
}

PipelinePlan stages_of(const PlannedModel& model, const Layout& layout) {
  return stages_of(model, layout, layout.policy);
}

PipelinePlan stages_of(const PlannedModel& model, const Layout& layout, TransferPolicy policy) {
  return plan_pipeline(model.cost().mixer(), model.cost().sublayers(), layout.size, policy);
}

void each_update(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                 const std::function<void(size_t, size_t, int64_t)>& add) {
  const ParameterRegistry& parameters = model.cost().parameters();
  const std::vector<SiteSet> sites = stages.sites_by_rank();
  std::vector<int> owners;
  if (layout.shard_optimizer) {
    owners = update_owners(parameters, sites, static_cast<int>(layout.data));
  }
  for (size_t i = 0; i < parameters.all().size(); ++i) {
    for (const size_t rank : stages_with(parameters.all()[i], sites)) {
      add(i, rank, owners.empty() ? 0 : owners[i]);
    }
  }
}

}  // namespace attnres
