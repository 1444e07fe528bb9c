#include "attnres/train/probe.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace attnres {
namespace {

Json depth_weights_json(const SiteDepthWeights& site) {
  return {{"site", site.site},
          {"sources", site.sources},
          {"weights", site.weights},
          {"entropy", site.entropy}};
}

SiteDepthWeights depth_weights_of(const Json& json) {
  return {.site = json.at("site"),
          .name = "",
          .sources = json.at("sources"),
          .weights = json.at("weights"),
          .entropy = json.at("entropy")};
}

}  // namespace

Json ProbeObserver::part(const ExpertLoads& loads, int64_t tokens, double loss_scale) const {
  Json lines = Json::array(), depth_weights = Json::array();
  const auto add = [&](int site, const char* name, Json value) {
    lines.push_back({{"site", site}, {"name", name}, {"value", std::move(value)}});
  };
  for (const SiteDepthWeights& site : depth_weights_.sites()) {
    add(site.site, "depth_weights", site.weights);
    add(site.site, "depth_entropy", site.entropy);
    depth_weights.push_back(depth_weights_json(site));
  }
  for (const auto& [site, magnitudes] : magnitudes_.by_site()) {
    add(site, "state_rms", magnitudes.state);
    add(site, "output_rms", magnitudes.output);
    add(site, "gradient_rms", magnitudes.gradient / loss_scale);
  }
  for (const auto& [site, load_E] : loads) {
    const at::Tensor share_E = load_E.to(at::kDouble).div(static_cast<double>(tokens));
    const double* values = share_E.const_data_ptr<double>();
    add(site, "expert_load", std::vector<double>(values, values + share_E.numel()));
  }
  return {{"lines", lines}, {"depth_weights", depth_weights}};
}

ProbeReading reading_of(const std::vector<Json>& parts) {
  ProbeReading reading;
  std::vector<SiteDepthWeights> sites;
  for (const Json& part : parts) {
    for (const Json& line : part.at("lines")) reading.lines.push_back(line);
    for (const Json& site : part.at("depth_weights")) sites.push_back(depth_weights_of(site));
  }
  std::stable_sort(reading.lines.begin(), reading.lines.end(), [](const Json& a, const Json& b) {
    return a.at("site").get<int>() < b.at("site").get<int>();
  });
  reading.depth_weights = summarize(sites);
  return reading;
}

ProbeReading probe(const Transformer& model, const Batch& batch) {
  ProbeObserver seen(model);
  const at::AutoGradMode recording(true);
  ExpertLoads loads;
  model.loss(batch.inputs_BT, batch.targets_BT, {.observer = &seen, .expert_loads = &loads})
      .backward();
  clear_gradients(model);
  return reading_of({seen.part(loads, batch.inputs_BT.numel(), /*loss_scale=*/1)});
}

}  // namespace attnres
