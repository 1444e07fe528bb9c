#include "attnres/model/depth_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/xlogy.h>

#include <algorithm>
#include <cmath>

#include "attnres/support/error.h"

namespace attnres {

std::string site_name(int site, int sublayers) {
  if (site == sublayers) return "output";
  return fmt::format("{} {}", site % 2 == 0 ? "attention" : "feed-forward", site / 2 + 1);
}

double SiteDepthWeights::mass(const std::string& source) const {
  double sum = 0;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i] == source) sum += weights[i];
  }
  return sum;
}

size_t SiteDepthWeights::dominant() const {
  return std::max_element(weights.begin(), weights.end()) - weights.begin();
}

std::optional<DepthWeightSummary> summarize(const std::vector<SiteDepthWeights>& sites) {
  DepthWeightSummary sum;
  double own_block = 0;
  int with_choice = 0, with_partial_sum = 0;
  for (const SiteDepthWeights& site : sites) {
    if (site.sources.size() < 2) continue;
    ++with_choice;
    sum.relative_entropy += site.entropy / std::log(static_cast<double>(site.sources.size()));
    sum.embedding_share += site.mass("embedding");
    if (site.sources.back() != "partial sum") continue;
    ++with_partial_sum;
    own_block += site.mass("partial sum");
  }
  if (with_choice == 0) return std::nullopt;
  sum.relative_entropy /= with_choice;
  sum.embedding_share /= with_choice;
  if (with_partial_sum > 0) sum.own_block = own_block / with_partial_sum;
  return sum;
}

DepthWeightAverage::DepthWeightAverage(const Transformer& model)
    : sublayers_(model.sublayers()), sums_(model.sublayers() + 1) {}

void DepthWeightAverage::on_read(int site, const ReadTrace& trace) {
  if (!trace.weights.defined() || trace.weights.numel() == 0) return;
  const at::Tensor weights_NM = trace.weights.detach().flatten(1).to(at::kDouble);
  const at::Tensor sum_N = weights_NM.sum(1).to(at::kCPU);
  Sums& sums = sums_.at(site);
  sums.sources = trace.sources;
  sums.weights.resize(sum_N.size(0));
  for (int64_t i = 0; i < sum_N.size(0); ++i) sums.weights[i] += sum_N[i].item<double>();
  sums.entropy -= at::xlogy(weights_NM, weights_NM).sum().item<double>();
  sums.tokens += weights_NM.size(1);
}

std::vector<SiteDepthWeights> DepthWeightAverage::sites() const {
  std::vector<SiteDepthWeights> result;
  for (int site = 0; site <= sublayers_; ++site) {
    const Sums& sums = sums_[site];
    if (sums.tokens == 0) continue;
    SiteDepthWeights mean = {site, site_name(site, sublayers_), sums.sources, sums.weights, 0};
    for (double& weight : mean.weights) weight /= static_cast<double>(sums.tokens);
    mean.entropy = sums.entropy / static_cast<double>(sums.tokens);
    result.push_back(std::move(mean));
  }
  return result;
}

}  // namespace attnres
