#include "attnres/plan/step_traffic.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "attnres/layers/experts.h"

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

StepTraffic plan_traffic(const PlannedModel& model, const Layout& layout) {
  StepTraffic traffic;
  for (const auto policy : {TransferPolicy::naive, TransferPolicy::report, TransferPolicy::owned}) {
    traffic.policies.push_back(traffic_under(model, layout, policy));
  }
  const auto processes = static_cast<double>(layout.data * layout.tensor);  // of each rank
  for (const SummedGradients& sums : summed_gradients(model, layout, stages_of(model, layout))) {
    traffic.replica_gradients += processes * sums.over_replicas;
    // Where it is sharded, one replica has them all.
    const auto tensor = static_cast<double>(layout.tensor);
    const double with_them = layout.shard_optimizer ? tensor : processes;
    traffic.shared_gradients += with_them * (sums.over_ranks + sums.over_tensor);
    if (layout.shard_optimizer) traffic.replica_parameters += tensor * sums.over_replicas;
  }
  const double tokens = static_cast<double>(layout.data * layout.micro_batches * layout.tokens);
  const int output = model.cost().sublayers();
  for (int site = 0; site <= output; ++site) {
    traffic.tensor_groups += passes_of(layout, site == output) * tokens *
                             static_cast<double>(layout.tensor - 1) * model.activation_bytes *
                             exchanges_at(model, {site, site + 1}).numbers;
  }
  return traffic;
}

Exchanges exchanges_at(const PlannedModel& model, const SiteRange& sites) {
  const ModelConfig& config = model.recipe.model;
  const DepthMixer& mixer = model.cost().mixer();
  const int output = model.cost().sublayers();
  Exchanges all;
  const auto add = [&](double count, int64_t numbers) {
    all.count += count;
    all.numbers += count * static_cast<double>(numbers);
  };
  for (int site = sites.first; site < std::min(sites.last, output + 1); ++site) {
    const StatePlan plan = mixer.plan(site);
    for (const auto* tensors : {&plan.sealed, &plan.open}) {
      for (const PlannedTensor& tensor : *tensors) {
        if (tensor.halo > 0) add(1, tensor.numbers());
      }
    }
    const auto mixed =
        std::find_if(plan.sealed.begin(), plan.sealed.end(),
                     [](const PlannedTensor& tensor) { return tensor.mixes_heads && tensor.read; });
    if (mixed != plan.sealed.end()) add(2, mixed->numbers());  // its keys and values
    if (site == output) continue;
    // The sublayer's inputs, and its output.
    add(mixer.needs(site).inputs() + 1, config.width);
    const ExpertsSettings& experts = config.settings<ExpertsSettings>();
    const bool has_experts = site % 2 == 1 && config.has_experts(site / 2);
    if (has_experts && experts.latent_width > 0 && experts.latent_norm) {
      add(1, experts.latent_width);
    }
  }
  return all;
}

double passes_of(const Layout& layout, bool is_output) {
  return layout.recompute && !is_output ? 3 : 2;
}

std::vector<SummedGradients> summed_gradients(const PlannedModel& model, const Layout& layout,
                                              const PipelinePlan& stages) {
  std::vector<SummedGradients> sums(layout.size.ranks);
  const std::vector<SiteSet> sites = stages.sites_by_rank();
  for (const Parameter& p : model.part(layout.tensor).cost.parameters().all()) {
    if (!is_differentiated(p.kind)) continue;
    const double bytes = kGradientBytes * static_cast<double>(p.tensor.numel());
    const std::vector<size_t> holders = stages_with(p, sites);
    for (const size_t rank : holders) {
      if (layout.data > 1) sums[rank].over_replicas += bytes;
      if (layout.tensor > 1 && cut_dimension(p) < 0) sums[rank].over_tensor += bytes;
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
