#include "attnres/report/depth_entropy.h"

#include <cmath>

namespace attnres {
namespace {

DepthEntropy mean_over_sites(const SiteValues& entropies, const SiteValues& weights) {
  double sum = 0, uniform = 0;
  int sites = 0;
  bool counted = true;
  for (const auto& [site, values] : entropies) {
    const auto sources = weights.find(site);
    const size_t count = sources == weights.end() ? 0 : sources->second.size();
    if (count == 1 || (count == 0 && site == 0)) continue;  // the first site has one source
    if (values.empty() || !std::isfinite(values[0])) continue;
    counted = counted && count > 1;
    uniform += count > 1 ? std::log(double(count)) : 0;
    sum += values[0];
    ++sites;
  }
  if (sites == 0) return {};
  return {sum / sites, counted ? uniform / sites : kNotMeasured};
}

}  // namespace

std::map<int64_t, DepthEntropy> depth_entropies(const RunData& run) {
  const auto found = run.probes.find("depth_entropy");
  if (found == run.probes.end()) return {};
  const SiteValues weights = last_probe(run, "depth_weights").sites;
  const size_t sites = last_probe(run, "depth_entropy").sites.size();
  std::map<int64_t, DepthEntropy> by_step;
  for (const auto& [step, entropies] : found->second) {
    const DepthEntropy mean = mean_over_sites(entropies, weights);
    if (entropies.size() == sites && std::isfinite(mean.measured)) by_step[step] = mean;
  }
  return by_step;
}

}  // namespace attnres
