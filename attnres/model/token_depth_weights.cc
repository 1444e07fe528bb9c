#include "attnres/model/token_depth_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <algorithm>

#include "attnres/model/depth_weights.h"

namespace attnres {
namespace {

class TokenWeightsObserver : public RunObserver {
 public:
  explicit TokenWeightsObserver(int sublayers) : sublayers_(sublayers) {}

  void on_read(int site, const ReadTrace& trace) override {
    if (!trace.weights.defined()) return;
    TokenDepthWeights weights = {site, site_name(site, sublayers_), trace.sources, {}};
    const at::Tensor weights_TN = trace.weights.detach().to(at::kCPU, at::kDouble).t().contiguous();
    const double* data = weights_TN.const_data_ptr<double>();
    const int64_t N = weights_TN.size(1);
    for (int64_t t = 0; t < weights_TN.size(0); ++t) {
      weights.weights.emplace_back(data + t * N, data + (t + 1) * N);
    }
    sites.push_back(std::move(weights));
  }

  std::vector<TokenDepthWeights> sites;

 private:
  int sublayers_;
};

}  // namespace

std::vector<TokenDepthWeights> token_depth_weights(const Transformer& model,
                                                   const at::Tensor& ids_T) {
  const at::NoGradGuard no_grad;
  TokenWeightsObserver observer(model.sublayers());
  model.hidden(ids_T.unsqueeze(0), {.observer = &observer});
  return observer.sites;
}

std::vector<std::string> all_sources(
    const std::vector<std::vector<std::string>>& sources_of_sites) {
  const std::string last = "partial sum";
  std::vector<std::string> all;
  bool has_last = false;
  for (const std::vector<std::string>& sources : sources_of_sites) {
    for (const std::string& source : sources) {
      if (source == last) {
        has_last = true;
      } else if (std::find(all.begin(), all.end(), source) == all.end()) {
        all.push_back(source);
      }
    }
  }
  if (has_last) all.push_back(last);
  return all;
}

TokenDepthWeights mean_over_sites(const std::vector<TokenDepthWeights>& sites) {
  std::vector<TokenDepthWeights> choosing;
  std::vector<std::vector<std::string>> sources;
  for (const TokenDepthWeights& site : sites) {
    if (site.sources.size() < 2) continue;
    choosing.push_back(site);
    sources.push_back(site.sources);
  }
  if (choosing.empty()) return {};
  TokenDepthWeights mean = {
      -1, fmt::format("mean over {} sites", choosing.size()), all_sources(sources), {}};
  mean.weights.assign(choosing[0].weights.size(), std::vector<double>(mean.sources.size()));
  for (const TokenDepthWeights& site : choosing) {
    for (size_t i = 0; i < site.sources.size(); ++i) {
      const auto found = std::find(mean.sources.begin(), mean.sources.end(), site.sources[i]);
      const size_t column = found - mean.sources.begin();
      for (size_t t = 0; t < site.weights.size(); ++t) {
        mean.weights[t][column] += site.weights[t][i] / static_cast<double>(choosing.size());
      }
    }
  }
  return mean;
}

}  // namespace attnres
