#include "attnres/plan/step_traffic.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr double kGradientBytes = 4;  // of a parameter: float32

PolicyTraffic traffic_under(const PlannedModel& model, const Layout& layout,
                            TransferPolicy policy) {
  PolicyTraffic traffic = {.policy = policy};
  double sealed = 0, open = 0;  // numbers of a token
  for (const StageTransfers& stage : stages_of(model, layout, policy).stages) {
    const TransferCount of_sealed = sealed_into(stage), of_open = open_into(stage);
    traffic.sealed_tensors += of_sealed.tensors;
    traffic.most_sealed_tensors = std::max(traffic.most_sealed_tensors, of_sealed.tensors);
    traffic.open_tensors += of_open.tensors;
    sealed += static_cast<double>(of_sealed.numbers);
    open += static_cast<double>(of_open.numbers);
  }
  const double tokens = static_cast<double>(layout.data * layout.micro_batches * layout.tokens);
  traffic.sealed = tokens * sealed * model.activation_bytes;
  traffic.sealed_gradients = tokens * sealed * model.sealed_gradient_bytes;
  traffic.open = traffic.open_gradients = tokens * open * model.activation_bytes;
  return traffic;
}

}  // namespace

const PolicyTraffic& StepTraffic::of(TransferPolicy policy) const {
  const auto found = std::find_if(policies.begin(), policies.end(),
                                  [&](const PolicyTraffic& t) { return t.policy == policy; });
  require(found != policies.end(), "plan: a policy without traffic");
  return *found;
}

StepTraffic plan_traffic(const PlannedModel& model, const Layout& layout) {
  StepTraffic traffic;
  for (const auto policy : {TransferPolicy::naive, TransferPolicy::report, TransferPolicy::owned}) {
    traffic.policies.push_back(traffic_under(model, layout, policy));
  }
  const auto replicas = static_cast<double>(layout.data);
  for (const SummedGradients& sums : summed_gradients(model, layout, stages_of(model, layout))) {
    traffic.replica_gradients += replicas * sums.over_replicas;
    // Where it is sharded, one replica has them all.
    traffic.shared_gradients += (layout.shard_optimizer ? 1 : replicas) * sums.over_ranks;
    if (layout.shard_optimizer) traffic.replica_parameters += sums.over_replicas;
  }
  return traffic;
}

std::vector<SummedGradients> summed_gradients(const PlannedModel& model, const Layout& layout,
                                              const PipelinePlan& stages) {
  std::vector<SummedGradients> sums(layout.size.ranks);
  const std::vector<SiteSet> sites = stages.sites_by_rank();
  for (const Parameter& p : model.cost.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    const double bytes = kGradientBytes * static_cast<double>(p.tensor.numel());
    const std::vector<size_t> holders = stages_with(p, sites);
    for (const size_t rank : holders) {
      if (layout.data > 1) sums[rank].over_replicas += bytes;
      if (holders.size() == 1) continue;
      sums[rank].over_ranks += bytes;
      sums[rank].most_holders = std::max(sums[rank].most_holders, static_cast<int>(holders.size()));
    }
  }
  return sums;
}

MixingTraffic mixing_traffic(const ModelConfig& config) {
  const MixerShape shape = config.mixer_shape();
  return {.of_mechanism = config.depth_mixing.traffic(shape),
          .of_residual = DepthMixing().traffic(shape)};
}

}  // namespace attnres
