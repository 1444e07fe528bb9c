#include "attnres/serve/depth_reply.h"

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace attnres {
namespace {

double entropy(const std::vector<float>& weights) {
  double sum = 0;
  for (const float weight : weights) sum -= weight > 0 ? weight * std::log(weight) : 0;
  return sum;
}

}  // namespace

Json sites_json(const ModelDescription& model) {
  Json sites = Json::array();
  for (const DepthSite& site : model.sites) {
    sites.push_back({{"site", site.site}, {"name", site.name}, {"sources", site.sources}});
  }
  return sites;
}

Json shares_json(const ModelDescription& model, const TokensDepthWeights& depth) {
  std::vector<std::string> order;
  std::map<std::string, double> sums;
  double total = 0;
  for (size_t s = 0; s < model.sites.size(); ++s) {
    const std::vector<std::string>& sources = model.sites[s].sources;
    if (sources.size() < 2) continue;
    for (size_t i = 0; i < sources.size(); ++i) {
      if (!sums.contains(sources[i])) order.push_back(sources[i]);
      for (const auto& token : depth.weights) {
        sums[sources[i]] += token[s][i];
        total += token[s][i];
      }
    }
  }
  Json shares = Json::array();
  for (const std::string& source : order) {
    shares.push_back({{"source", source}, {"share", total > 0 ? sums[source] / total : 0}});
  }
  return shares;
}

Json entropies_json(const TokensDepthWeights& depth) {
  Json entropies = Json::array();
  for (const auto& token : depth.weights) {
    Json sites = Json::array();
    for (const std::vector<float>& weights : token) sites.push_back(entropy(weights));
    entropies.push_back(std::move(sites));
  }
  return entropies;
}

}  // namespace attnres
