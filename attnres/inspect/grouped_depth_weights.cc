#include "attnres/inspect/grouped_depth_weights.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/xlogy.h>
#include <ATen/ops/zeros.h>
#include <fmt/core.h>

#include <utility>

#include "attnres/support/error.h"

namespace attnres {

int64_t position_bucket(int64_t position) {
  int64_t bucket = 0;
  for (; position > 0; position /= 4) ++bucket;
  return bucket;
}

std::string position_bucket_name(int64_t bucket) {
  if (bucket == 0) return "first";
  const int64_t begin = int64_t{1} << (2 * (bucket - 1));
  return fmt::format("{}-{}", begin, 4 * begin - 1);
}

GroupedDepthWeights::GroupedDepthWeights(const Transformer& model, std::vector<std::string> names)
    : sublayers_(model.sublayers()),
      names_(std::move(names)),
      tokens_G_(at::zeros({static_cast<int64_t>(names_.size())}, at::kDouble)),
      sums_(model.sublayers() + 1) {}

void GroupedDepthWeights::set_groups(const at::Tensor& groups_T) {
  membership_TG_ = at::one_hot(groups_T, static_cast<int64_t>(names_.size())).to(at::kDouble);
  tokens_G_ = tokens_G_ + membership_TG_.sum(0);
}

void GroupedDepthWeights::on_read(int site, const ReadTrace& trace) {
  if (!trace.weights.defined() || trace.weights.numel() == 0) return;
  require(membership_TG_.defined() && membership_TG_.size(0) == trace.weights.size(1),
          "depth weights of groups: set the groups of this pass's {} tokens before it",
          trace.weights.size(1));
  const at::Tensor weights_NT = trace.weights.detach().to(at::kCPU, at::kDouble);
  const at::Tensor weights_NG = weights_NT.mm(membership_TG_);
  const at::Tensor entropy_G = -at::xlogy(weights_NT, weights_NT).sum(0).matmul(membership_TG_);
  Sums& sums = sums_.at(site);
  sums.sources = trace.sources;
  const bool first = !sums.weights_NG.defined();
  sums.weights_NG = first ? weights_NG : sums.weights_NG + weights_NG;
  sums.entropy_G = first ? entropy_G : sums.entropy_G + entropy_G;
}

std::vector<DepthWeightGroup> GroupedDepthWeights::groups() const {
  std::vector<DepthWeightGroup> result;
  for (int64_t g = 0; g < std::ssize(names_); ++g) {
    const auto tokens = tokens_G_[g].item<double>();
    if (tokens == 0) continue;
    DepthWeightGroup group = {names_[g], static_cast<int64_t>(tokens), {}};
    for (int site = 0; site <= sublayers_; ++site) {
      const Sums& sums = sums_[site];
      if (!sums.weights_NG.defined()) continue;
      SiteDepthWeights mean = {site, site_name(site, sublayers_), sums.sources, {}, 0};
      for (int64_t i = 0; i < std::ssize(sums.sources); ++i) {
        mean.weights.push_back(sums.weights_NG[i][g].item<double>() / tokens);
      }
      mean.entropy = sums.entropy_G[g].item<double>() / tokens;
      group.sites.push_back(std::move(mean));
    }
    if (!group.sites.empty()) result.push_back(std::move(group));
  }
  return result;
}

}  // namespace attnres
