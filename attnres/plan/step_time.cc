#include "attnres/plan/step_time.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "attnres/parallel/gradient_sums.h"
#include "attnres/plan/step_traffic.h"

namespace attnres {
namespace {

constexpr double kFlopsPerMultiplyAdd = 2;

double flops_of(const PlannedModel& model, const Cluster& cluster) {
  return cluster.flops(model.recipe.train.precision) * cluster.device.efficiency;
}

double seconds_to_sum(double bytes, double processes, const Link& link) {
  if (processes < 2 || bytes == 0) return 0;
  const double buckets = std::ceil(bytes / kGradientBucketBytes);
  return link.seconds(2 * (processes - 1) / processes * bytes,
                      2 * std::ceil(std::log2(processes)) * buckets);
}

// What crosses into a stage, and its gradients.
void add_transfers(const PlannedModel& model, const Layout& layout, const StageTransfers& stage,
                   const Link& link, StageTimes& times) {
  const TransferCount sealed = sealed_into(stage), open = open_into(stage);
  const double own = static_cast<double>(layout.tokens) / static_cast<double>(layout.tensor);
  const auto messages = static_cast<double>(sealed.tensors + open.tensors);
  const double of_sealed = own * static_cast<double>(sealed.numbers),
               of_open = own * static_cast<double>(open.numbers) * model.activation_bytes;
  times.receive = link.seconds(of_sealed * model.activation_bytes + of_open, messages);
  times.give_back = link.seconds(of_sealed * model.sealed_gradient_bytes + of_open, messages);
}

// What one pass through these sites takes, forward or backward.
double seconds_within_group(const PlannedModel& model, const Layout& layout, const SiteRange& sites,
                            const Cluster& cluster) {
  if (layout.tensor == 1) return 0;
  const Exchanges exchanges = exchanges_at(model, sites);
  const double others = 1 - 1 / static_cast<double>(layout.tensor);
  return cluster.link(tensor_groups_share_node(layout, cluster))
      .seconds(
          others * static_cast<double>(layout.tokens) * exchanges.numbers * model.activation_bytes,
          exchanges.count);
}

struct UpdateWork {
  double parameters = 0, flops = 0;
};

// By rank: of the replica with most to update.
std::vector<UpdateWork> update_work(const PlannedModel& model, const Layout& layout,
                                    const PipelinePlan& stages) {
  const PlannedModel::Part& part = model.part(layout.tensor);
  std::vector<UpdateWork> work(stages.size.ranks);
  std::map<std::pair<size_t, int64_t>, UpdateWork> by_replica;
  each_update(model, layout, stages, [&](size_t parameter, size_t rank, int64_t replica) {
    UpdateWork& here = by_replica[{rank, replica}];
    here.parameters += static_cast<double>(part.cost.parameters().all()[parameter].tensor.numel());
    here.flops += part.updates[parameter].flops;
    work[rank].parameters = std::max(work[rank].parameters, here.parameters);
    work[rank].flops = std::max(work[rank].flops, here.flops);
  });
  return work;
}

// When a rank's sums over replicas are done, each stage's gradients being a part of them.
double end_of_sums(const std::vector<TimedAction>& actions, double bytes, double replicas,
                   const Link& link) {
  std::map<int, TimedAction> last_backwards;  // by stage
  for (const TimedAction& action : actions) {
    if (action.action.direction == Direction::backward) {
      last_backwards[action.action.stage] = action;
    }
  }
  double end = actions.back().end;
  if (replicas < 2) return end;
  const double of_stage = bytes / static_cast<double>(last_backwards.size());
  const double bucket = std::min(of_stage, static_cast<double>(kGradientBucketBytes));
  double free = 0;  // the link
  // Later stages' last backwards come first.
  for (auto stage = last_backwards.rbegin(); stage != last_backwards.rend(); ++stage) {
    const TimedAction& backward = stage->second;
    free = std::max(std::max(free, backward.begin) + seconds_to_sum(of_stage, replicas, link),
                    backward.end + seconds_to_sum(bucket, replicas, link));
  }
  return std::max(end, free);
}

}  // namespace

std::vector<StageTimes> stage_times(const PlannedModel& model, const Layout& layout,
                                    const PipelinePlan& stages, const Cluster& cluster) {
  const double flops = flops_of(model, cluster), bandwidth = cluster.device.bandwidth;
  const auto tokens = static_cast<double>(layout.tokens);
  const ModelCost& cost = model.part(layout.tensor).cost;
  std::vector<StageTimes> all;
  for (size_t stage = 0; stage < stages.stages.size(); ++stage) {
    const StageTransfers& transfers = stages.stages[stage];
    const SiteRange& sites = transfers.sites;
    const double multiply_adds =
        cost.linear_maps(sites) + cost.between_tokens(model.recipe.train.context, sites);
    const double moved = moved_forward(cost, sites) * model.activation_bytes;
    const double pass = tokens * (kFlopsPerMultiplyAdd * multiply_adds / flops + moved / bandwidth);
    const double exchanges = seconds_within_group(model, layout, sites, cluster);
    StageTimes& times = all.emplace_back();
    times = {
        .forward = pass + exchanges,
        .backward = (layout.recompute ? 3 : 2) * pass + (layout.recompute ? 2 : 1) * exchanges};
    // The loss computes its gradients at once.
    if (sites.has(cost.sublayers())) {
      times.forward += 3 * tokens * kFlopsPerMultiplyAdd * cost.head() / flops;
    }
    if (stage > 0 && layout.size.ranks > 1) {
      const int to = layout.size.rank_of(static_cast<int>(stage));
      const int from = layout.size.rank_of(static_cast<int>(stage) - 1);
      add_transfers(model, layout, transfers, cluster.link(share_node(layout, cluster, from, to)),
                    times);
    }
  }
  return all;
}

PipelineTime simulate_pipeline(const Layout& layout, const std::vector<StageTimes>& times) {
  PipelineTime time;
  double computed = 0;
  const PipelineSchedule schedule = interleaved_1f1b(layout.size, layout.micro_batches);
  time.ranks = simulate(schedule, layout.size, times);
  for (const auto& actions : time.ranks) {
    time.ends.push_back(actions.back().end);
    for (const TimedAction& action : actions) computed += action.end - action.begin;
  }
  time.seconds = *std::max_element(time.ends.begin(), time.ends.end());
  time.bubble = (layout.size.ranks * time.seconds - computed) / computed;
  return time;
}

StepTime plan_time(const PlannedModel& model, const Layout& layout, const PipelinePlan& stages,
                   const Cluster& cluster) {
  StepTime step = {.pipeline =
                       simulate_pipeline(layout, stage_times(model, layout, stages, cluster))};

  const Link& of_replicas = cluster.link(replicas_share_node(layout, cluster));
  const Link& of_pipeline = cluster.link(share_node(layout, cluster, 0, layout.size.ranks - 1));
  const std::vector<SummedGradients> sums = summed_gradients(model, layout, stages);
  const Link& of_tensor = cluster.link(tensor_groups_share_node(layout, cluster));
  const std::vector<UpdateWork> updates = update_work(model, layout, stages);
  double summed = 0;
  for (int rank = 0; rank < layout.size.ranks; ++rank) {
    const double over_replicas = end_of_sums(step.pipeline.ranks[rank], sums[rank].over_replicas,
                                             static_cast<double>(layout.data), of_replicas);
    const double over_ranks =
        seconds_to_sum(sums[rank].over_ranks, sums[rank].most_holders, of_pipeline);
    const double over_tensor =
        seconds_to_sum(sums[rank].over_tensor, static_cast<double>(layout.tensor), of_tensor);
    summed = std::max(summed, over_replicas + over_tensor + over_ranks);
    step.update = std::max(
        step.update, 4 * kTouchedByUpdate * updates[rank].parameters / cluster.device.bandwidth +
                         updates[rank].flops / flops_of(model, cluster));
  }
  step.sums = std::max(0.0, summed - step.pipeline.seconds);
  step.seconds = step.pipeline.seconds + step.sums + step.update;

  const double tokens = static_cast<double>(layout.data * layout.micro_batches * layout.tokens);
  const double model_flops = 3 * kFlopsPerMultiplyAdd *
                             (model.cost().linear_maps() + model.cost().head() +
                              model.cost().between_tokens(model.recipe.train.context));
  step.tokens_per_second = tokens / step.seconds;
  step.utilisation = tokens * model_flops /
                     (step.seconds * static_cast<double>(layout.processes()) *
                      cluster.flops(model.recipe.train.precision));
  return step;
}

}  // namespace attnres
