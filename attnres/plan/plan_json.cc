#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/plan/plan.h"

namespace attnres {
namespace {

Json layout_json(const Layout& layout) {
  return {{"data", layout.data},
          {"pipeline", layout.size.ranks},
          {"virtual", layout.size.virtual_stages},
          {"tensor", layout.tensor},
          {"policy", name_of(layout.policy)},
          {"recompute", layout.recompute},
          {"shard_optimizer", layout.shard_optimizer},
          {"processes", layout.processes()},
          {"micro_batches", layout.micro_batches},
          {"tokens_per_micro_batch", layout.tokens}};
}

Json memory_json(const MemoryPlan& memory) {
  Json ranks = Json::array();
  for (const RankMemory& rank : memory.ranks) {
    Json sites = Json::array();
    for (const SiteRange& range : rank.sites) sites.push_back({range.first, range.last});
    ranks.push_back({{"sites", sites},
                     {"parameters", rank.parameters},
                     {"weights", rank.weights},
                     {"gradients", rank.gradients},
                     {"moments", rank.moments},
                     {"activations", rank.activations},
                     {"in_flight", rank.in_flight},
                     {"received", rank.received},
                     {"waiting_gradients", rank.waiting_gradients},
                     {"in_step", rank.in_step},
                     {"between_steps", rank.between_steps},
                     {"total", rank.total}});
  }
  return {{"fits", memory.fits()}, {"capacity", memory.capacity}, {"ranks", ranks}};
}

Json traffic_json(const StepTraffic& traffic) {
  Json policies = Json::object();
  for (const PolicyTraffic& policy : traffic.policies) {
    policies[name_of(policy.policy)] = {{"sealed_tensors", policy.sealed_tensors},
                                        {"most_sealed_tensors", policy.most_sealed_tensors},
                                        {"open_tensors", policy.open_tensors},
                                        {"sealed", policy.sealed},
                                        {"open", policy.open},
                                        {"sealed_gradients", policy.sealed_gradients},
                                        {"open_gradients", policy.open_gradients}};
  }
  return {{"policies", policies},
          {"tensor_groups", traffic.tensor_groups},
          {"replica_gradients", traffic.replica_gradients},
          {"shared_gradients", traffic.shared_gradients},
          {"replica_parameters", traffic.replica_parameters}};
}

Json time_json(const StepTime& time) {
  return {{"seconds", time.seconds},        {"pipeline", time.pipeline.seconds},
          {"bubble", time.pipeline.bubble}, {"sums", time.sums},
          {"update", time.update},          {"tokens_per_second", time.tokens_per_second},
          {"utilisation", time.utilisation}};
}

Json prefill_json(const PrefillMemory& prefill) {
  return {{"context", prefill.context},
          {"chunk", prefill.chunk},
          {"devices", prefill.devices},
          {"representations", prefill.representations},
          {"bytes", prefill.whole},
          {"per_device", prefill.per_device},
          {"per_device_chunked", prefill.per_device_chunked}};
}

}  // namespace

Json plan_to_json(const Plan& plan, const Recipe& recipe, const Cluster& cluster) {
  return {{"recipe", recipe.name},
          {"cluster", cluster_to_json(cluster)},
          {"layout", layout_json(plan.layout)},
          {"parameters", plan.parameters},
          {"tokens_per_step", plan.tokens},
          {"memory", memory_json(plan.memory)},
          {"shortage", plan.shortage},
          {"traffic", traffic_json(plan.traffic)},
          {"mixing",
           {{"mechanism", recipe.model.depth_mixing.name()},
            {"traffic", plan.mixing.of_mechanism},
            {"residual", plan.mixing.of_residual}}},
          {"time", time_json(plan.time)},
          {"prefill", prefill_json(plan.prefill)}};
}

Json search_to_json(const SearchResult& result) {
  Json best = Json::array();
  for (const FoundLayout& found : result.best) {
    Json by_policy = Json::object();
    for (size_t i = 0; i < 3; ++i) {
      const double seconds = found.seconds_by_policy[i];
      const char* const names[] = {"naive", "report", "owned"};
      by_policy[names[i]] = std::isfinite(seconds) ? Json(seconds) : Json();
    }
    best.push_back({{"layout", layout_json(found.layout)},
                    {"time", time_json(found.time)},
                    {"fullest", found.fullest},
                    {"seconds_by_policy", by_policy}});
  }
  Json json = {{"candidates", result.candidates}, {"best", best}};
  if (!result.why_not.empty()) {
    json["nearest_that_does_not_fit"] = {{"layout", layout_json(result.nearest)},
                                         {"fullest", result.nearest_fullest},
                                         {"shortage", result.why_not}};
  }
  return json;
}

}  // namespace attnres
