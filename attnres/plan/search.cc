#include "attnres/plan/search.h"

#include <algorithm>
#include <limits>
#include <optional>

#include "attnres/model/layer_kind.h"
#include "attnres/plan/device_memory.h"
#include "attnres/plan/fit.h"

namespace attnres {
namespace {

constexpr TransferPolicy kAllPolicies[] = {TransferPolicy::naive, TransferPolicy::report,
                                           TransferPolicy::owned};

struct Candidate {
  Layout layout;
  double at_least = 0;  // seconds: the busiest rank's stages, all micro-batches
};

// The most replicas of this many processes for which there are devices, and parts of a step.
int64_t most_replicas(int64_t parts, int64_t devices, int64_t processes) {
  for (int64_t data = std::min(parts, devices / processes); data > 1; --data) {
    if (parts % data == 0) return data;
  }
  return 1;
}

double busiest(const Layout& layout, const std::vector<StageTimes>& times) {
  std::vector<double> seconds(layout.size.ranks);
  for (size_t stage = 0; stage < times.size(); ++stage) {
    seconds[layout.size.rank_of(static_cast<int>(stage))] +=
        layout.micro_batches * (times[stage].forward + times[stage].backward);
  }
  return *std::max_element(seconds.begin(), seconds.end());
}

std::vector<int> virtual_stages_of(int ranks, int sublayers) {
  std::vector<int> all = {1};
  if (ranks == 1) return all;
  for (int stages = 2; stages * ranks <= sublayers; stages *= 2) {
    all.push_back(stages);
    if (stages / 2 * 3 * ranks <= sublayers) all.push_back(stages / 2 * 3);
  }
  return all;
}

std::vector<int64_t> tensor_groups_of(const PlannedModel& model, const Cluster& cluster) {
  std::vector<int64_t> all;
  const int64_t most = std::min(cluster.devices, cluster.devices_per_node);
  for (int64_t size = 1; size <= most && has_equal_parts(model.recipe.model, size); size *= 2) {
    all.push_back(size);
  }
  return all;
}

std::vector<Candidate> candidates(const PlannedModel& model, const Cluster& cluster) {
  const Layout given = layout_of(model.recipe);
  const int64_t parts = model.recipe.train.accumulate;
  const int sublayers = model.cost().sublayers();
  std::vector<Candidate> all;
  const auto add = [&](int ranks, int64_t tensor) {
    const int64_t data = most_replicas(parts, cluster.devices, ranks * tensor);
    for (const int virtual_stages : virtual_stages_of(ranks, sublayers)) {
      for (const bool recompute : {false, true}) {
        Candidate& candidate = all.emplace_back();
        candidate.layout = {.data = data,
                            .size = {ranks, virtual_stages},
                            .tensor = tensor,
                            .policy = TransferPolicy::owned,
                            .recompute = recompute,
                            .shard_optimizer = model.recipe.parallel.shard_optimizer && data > 1,
                            .micro_batches = static_cast<int>(parts / data),
                            .tokens = given.tokens};
        candidate.at_least = busiest(
            candidate.layout,
            stage_times(model, candidate.layout, stages_of(model, candidate.layout), cluster));
      }
    }
  };
  for (const int64_t tensor : tensor_groups_of(model, cluster)) {
    for (int ranks = 1; ranks <= std::min<int64_t>(cluster.devices / tensor, sublayers); ++ranks) {
      add(ranks, tensor);
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Candidate& a, const Candidate& b) { return a.at_least < b.at_least; });
  return all;
}

// With every policy; none where it fits with none of them.
std::optional<FoundLayout> try_layout(const PlannedModel& model, const Cluster& cluster,
                                      const Layout& layout) {
  std::optional<FoundLayout> found;
  double seconds[3];
  for (size_t i = 0; i < 3; ++i) {
    Layout with_policy = layout;
    with_policy.policy = kAllPolicies[i];
    const PipelinePlan stages = stages_of(model, with_policy);
    const MemoryPlan memory = plan_memory(model, with_policy, stages, cluster);
    seconds[i] = std::numeric_limits<double>::infinity();
    if (!memory.fits()) continue;
    const StepTime time = plan_time(model, with_policy, stages, cluster);
    seconds[i] = time.seconds;
    if (found && found->time.seconds < time.seconds) continue;
    found = {.layout = with_policy, .time = time, .fullest = memory.ranks[memory.fullest()].total};
  }
  if (found) std::copy(seconds, seconds + 3, found->seconds_by_policy);
  return found;
}

bool is_better(const FoundLayout& a, const FoundLayout& b) {
  if (a.time.seconds != b.time.seconds) return a.time.seconds < b.time.seconds;
  return a.layout.processes() < b.layout.processes();
}

}  // namespace

SearchResult search_layouts(const PlannedModel& model, const Cluster& cluster, size_t most) {
  SearchResult result;
  const std::vector<Candidate> all = candidates(model, cluster);
  result.candidates = static_cast<int64_t>(all.size());
  double least_lack = std::numeric_limits<double>::infinity();
  for (const Candidate& candidate : all) {
    const bool is_full = result.best.size() == most;
    if (is_full && candidate.at_least > result.best.back().time.seconds) break;
    const PipelinePlan stages = stages_of(model, candidate.layout);
    const MemoryPlan memory = plan_memory(model, candidate.layout, stages, cluster);
    if (!memory.fits()) {
      // owned keeps least of what was received, so that the other policies do not fit either.
      const double needed = memory.ranks[memory.fullest()].total;
      if (needed < least_lack) {
        least_lack = needed;
        result.nearest = candidate.layout;
        result.nearest_fullest = needed;
        result.why_not = explain_shortage(model, candidate.layout, memory, cluster);
      }
      continue;
    }
    const auto found = try_layout(model, cluster, candidate.layout);
    if (!found) continue;
    result.best.insert(std::upper_bound(result.best.begin(), result.best.end(), *found, is_better),
                       *found);
    if (result.best.size() > most) result.best.pop_back();
  }
  return result;
}

}  // namespace attnres
