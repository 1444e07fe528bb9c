#include "attnres/train/step/expert_balance.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <limits>

#include "attnres/layers/experts.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

at::Tensor router_bias(const ParameterRegistry& parameters, int site) {
  for (const Parameter& p : parameters.all()) {
    if (p.site == site && p.kind == ParameterKind::router_bias) return p.tensor;
  }
  fail("experts of site {}: there is no router bias to balance them by", site);
}

}  // namespace

void balance_experts(const ParameterRegistry& parameters, const ExpertLoads& loads, double rate) {
  for (const auto& [site, load_E] : loads) {
    const Parameter* gate = parameters.find(site, "gate");
    if (gate != nullptr && !gate->tensor.requires_grad()) continue;
    at::Tensor bias_E = router_bias(parameters, site);
    balance(bias_E, load_E, rate);
  }
}

LoadRange load_range(const ExpertLoads& loads) {
  LoadRange range = {.least = std::numeric_limits<double>::infinity()};
  for (const auto& [site, load_E] : loads) {
    const double mean = load_E.to(at::kDouble).mean().item<double>();
    range.least = std::min(range.least, load_E.min().item<double>() / mean);
    range.most = std::max(range.most, load_E.max().item<double>() / mean);
  }
  return range;
}

}  // namespace attnres
