#include "attnres/plan/device_memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace attnres {
namespace {

// Bytes of a float32, in which parameters, gradients and moments are.
constexpr double kNumberBytes = 4;

double weight_bytes(const PlannedModel& model, double numbers) {
  const bool has_copies = model.activation_bytes != kNumberBytes;
  return numbers * (kNumberBytes + (has_copies ? model.activation_bytes : 0));
}

void add_parameters(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                    MemoryPlan& plan) {
  const PlannedModel::Part& part = model.part(layout.tensor);
  const std::vector<SiteSet> sites = stages.sites_by_rank();
  for (const Parameter& p : part.cost.parameters().all()) {
    for (const size_t rank : stages_with(p, sites)) {
      plan.ranks[rank].parameters += p.tensor.numel();
    }
  }
  std::map<std::pair<size_t, int64_t>, double> moments;  // by rank and replica
  each_update(model, layout, stages, [&](size_t parameter, size_t rank, int64_t replica) {
    const UpdateCost& update = part.updates[parameter];
    RankMemory& memory = plan.ranks[rank];
    double& here = moments[{rank, replica}];
    here += kNumberBytes * update.moments;
    memory.moments = std::max(memory.moments, here);
    memory.between_steps = std::max(memory.between_steps, kNumberBytes * update.working);
  });
  for (RankMemory& memory : plan.ranks) {
    const auto numbers = static_cast<double>(memory.parameters);
    memory.weights = weight_bytes(model, numbers);
    memory.gradients = kNumberBytes * numbers;
  }
}

// Bytes of a stage.
struct StageMemory {
  double until_backward = 0, in_backward = 0, received = 0;
  // Gradients of sealed tensors that its backward leaves waiting, and that waited for it.
  double leaves = 0, takes = 0;
};

// The later stages of a rank come first in a micro-batch's backward: the last of them that reads a
// copy leaves its gradient, to which the others add.
void add_waiting_gradients(const PipelinePlan& stages, double bytes_of_a_number,
                           std::vector<StageMemory>& memory) {
  std::vector<std::set<std::pair<size_t, int>>> waiting(stages.size.ranks);  // tensors and copies
  for (int stage = stages.size.stages() - 1; stage >= 0; --stage) {
    const StageTransfers& transfers = stages.stages[stage];
    for (size_t i = 0; i < transfers.copies.size(); ++i) {
      const int copy = transfers.copies[i];
      if (copy == kNoCopy || copy == stage) continue;
      if (!waiting[stages.size.rank_of(stage)].emplace(i, copy).second) continue;
      const double bytes =
          static_cast<double>(transfers.before.sealed[i].numbers()) * bytes_of_a_number;
      memory[stage].leaves += bytes;
      memory[copy].takes += bytes;
    }
  }
}

std::vector<StageMemory> stage_memory(const PlannedModel& model, const Layout& layout,
                                      const PipelinePlan& stages) {
  const auto tokens = static_cast<double>(layout.tokens);
  const double share = 1 / static_cast<double>(layout.tensor);  // of the depth state
  const ModelCost& cost = model.part(layout.tensor).cost;
  std::vector<StageMemory> all;
  for (const StageTransfers& stage : stages.stages) {
    const double bytes = tokens * model.activation_bytes;
    StageMemory memory = {
        .until_backward = bytes * cost.kept_until_backward(stage.sites, layout.recompute),
        .in_backward = bytes * cost.kept_in_backward(stage.sites, layout.recompute),
        .received = share * bytes * static_cast<double>(sealed_into(stage).numbers)};
    if (stage.sites.has(cost.sublayers())) {
      // Gradients of the head are there with the loss, once beside what is summed up.
      memory.in_backward +=
          kNumberBytes *
          (logits_at_once(model.vocab_size, share * tokens, c10::kCPU) + model.cost().head());
    }
    all.push_back(memory);
  }
  add_waiting_gradients(stages, share * tokens * model.sealed_gradient_bytes, all);
  return all;
}

// What a rank holds from action to action.
void add_activations(const std::vector<PipelineAction>& actions,
                     const std::vector<StageMemory>& stages, RankMemory& memory) {
  double kept = 0, received = 0, waiting = 0;
  for (const auto& [direction, number, micro_batch] : actions) {
    const StageMemory& stage = stages[number];
    const bool is_backward = direction == Direction::backward;
    if (is_backward) {
      waiting += stage.leaves;
    } else {
      kept += stage.until_backward;
      received += stage.received;
    }
    const double activations = kept + stage.in_backward;
    memory.activations = std::max(memory.activations, activations);
    memory.received = std::max(memory.received, received);
    memory.waiting_gradients = std::max(memory.waiting_gradients, waiting);
    memory.in_step = std::max(memory.in_step, activations + received + waiting);
    if (is_backward) {
      kept -= stage.until_backward;
      received -= stage.received;
      waiting -= stage.takes;
    }
  }
  memory.in_flight = most_in_flight(actions);
}

// Evaluation. Several processes evaluate in batches like a step's, whose activations are more; a
// probe takes what one micro-batch of a step does, or less.
void add_evaluation(const PlannedModel& model, const Layout& layout, MemoryPlan& plan) {
  if (layout.processes() != 1) return;
  RankMemory& alone = plan.ranks[0];
  alone.between_steps =
      std::max(alone.between_steps,
               evaluation_bytes(model.cost(), model.vocab_size, model.recipe.train, c10::kCPU));
}

}  // namespace

bool MemoryPlan::fits() const {
  return ranks[fullest()].total <= capacity;
}

int MemoryPlan::fullest() const {
  const auto most =
      std::max_element(ranks.begin(), ranks.end(),
                       [](const RankMemory& a, const RankMemory& b) { return a.total < b.total; });
  return static_cast<int>(most - ranks.begin());
}

MemoryPlan plan_memory(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                       const Cluster& cluster) {
  MemoryPlan plan = {.ranks = std::vector<RankMemory>(layout.size.ranks),
                     .capacity = cluster.device.memory - cluster.device.reserved};
  add_parameters(model, layout, stages, plan);
  const PipelineSchedule schedule = interleaved_1f1b(layout.size, layout.micro_batches);
  const std::vector<StageMemory> by_stage = stage_memory(model, layout, stages);
  for (int rank = 0; rank < layout.size.ranks; ++rank) {
    plan.ranks[rank].sites = stages.sites_of(rank).ranges();
    add_activations(schedule[rank], by_stage, plan.ranks[rank]);
  }
  add_evaluation(model, layout, plan);
  for (RankMemory& memory : plan.ranks) {
    memory.total = memory.weights + memory.gradients + memory.moments +
                   kFragmentation * std::max(memory.in_step, memory.between_steps);
  }
  return plan;
}

}  // namespace attnres
