#include "attnres/train/step/probe.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/ne.h>
#include <ATen/ops/sum.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

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

// Means over the tokens of each part; of root mean squares, those of the squares.
Json mean_of(const std::vector<std::pair<double, Json>>& values, bool is_rms) {
  if (values.size() == 1) return values.front().second;
  const auto number = [&](double value) { return is_rms ? value * value : value; };
  double tokens = 0;
  std::vector<double> sums;
  for (const auto& [weight, value] : values) {
    const auto numbers = value.is_array() ? value.get<std::vector<double>>()
                                          : std::vector<double>{value.get<double>()};
    sums.resize(numbers.size());
    tokens += weight;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += weight * number(numbers[i]);
  }
  for (double& sum : sums) sum = is_rms ? std::sqrt(sum / tokens) : sum / tokens;
  return values.front().second.is_array() ? Json(sums) : Json(sums.front());
}

// Means of the objects that parts have under a key, over those of each site and name, by site.
std::vector<Json> means_of(const std::vector<Json>& parts, const char* key) {
  std::vector<Json> found;  // the first of each
  std::map<std::pair<int, std::string>, std::vector<std::pair<double, Json>>> all;
  for (const Json& part : parts) {
    for (const Json& object : part.at(key)) {
      auto& same = all[{object.at("site"), object.value("name", "")}];
      if (same.empty()) found.push_back(object);
      same.emplace_back(part.at("tokens"), object);
    }
  }
  for (Json& object : found) {
    const std::string name = object.value("name", "");
    const auto& same = all.at({object.at("site"), name});
    for (const char* member : {"value", "weights", "entropy"}) {
      if (!object.contains(member)) continue;
      std::vector<std::pair<double, Json>> values;
      for (const auto& [tokens, other] : same) values.emplace_back(tokens, other.at(member));
      object[member] = mean_of(values, name.ends_with("_rms"));
    }
  }
  std::stable_sort(found.begin(), found.end(), [](const Json& a, const Json& b) {
    return a.at("site").get<int>() < b.at("site").get<int>();
  });
  return found;
}

}  // namespace

Json ProbeObserver::part(const ExpertLoads& loads, int64_t tokens, int64_t own,
                         double loss_scale) const {
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
    const at::Tensor share_E = load_E.to(at::kCPU, at::kDouble).div(static_cast<double>(tokens));
    const double* values = share_E.const_data_ptr<double>();
    add(site, "expert_load", std::vector<double>(values, values + share_E.numel()));
  }
  return {{"tokens", own}, {"lines", lines}, {"depth_weights", depth_weights}};
}

ProbeReading reading_of(const std::vector<Json>& parts) {
  ProbeReading reading;
  for (const Json& line : means_of(parts, "lines")) reading.lines.push_back(line);
  std::vector<SiteDepthWeights> sites;
  for (const Json& site : means_of(parts, "depth_weights")) {
    sites.push_back(depth_weights_of(site));
  }
  reading.depth_weights = summarize(sites);
  return reading;
}

std::vector<Batch> windows_of(const Batch& batch) {
  std::vector<Batch> windows;
  for (int64_t row = 0; row < batch.inputs_BT.size(0); ++row) {
    windows.push_back({batch.inputs_BT.narrow(0, row, 1), batch.targets_BT.narrow(0, row, 1)});
  }
  return windows;
}

int64_t count_targets(const Batch& batch) {
  return batch.targets_BT.ne(-100).sum().item<int64_t>();
}

ProbeReading probe(const Transformer& model, const Batch& batch, bool recompute) {
  const at::AutoGradMode recording(true);
  const auto targets = static_cast<double>(count_targets(batch));
  std::vector<Json> parts;
  for (const Batch& window : windows_of(batch)) {
    ProbeObserver seen(model);
    ExpertLoads loads;
    const LossSum loss =
        model.loss_sum(window, {.recompute = recompute, .observer = &seen, .expert_loads = &loads});
    if (loss.sum.requires_grad()) loss.sum.backward();  // something is trained
    clear_gradients(model);
    const int64_t tokens = window.inputs_BT.numel();
    parts.push_back(seen.part(loads, tokens, tokens, targets));
  }
  return reading_of(parts);
}

}  // namespace attnres
