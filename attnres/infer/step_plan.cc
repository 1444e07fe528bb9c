#include "attnres/infer/step_plan.h"

#include <algorithm>

namespace attnres {
namespace {

std::vector<int64_t> one_for_each_continued(const std::vector<StepDemand>& demands) {
  std::vector<int64_t> tokens;
  for (const StepDemand& demand : demands) tokens.push_back(demand.prompt ? 0 : 1);
  return tokens;
}

}  // namespace

std::vector<int64_t> plan_step(const std::vector<StepDemand>& demands, int64_t budget) {
  std::vector<int64_t> tokens = one_for_each_continued(demands);
  std::vector<size_t> prompts;
  for (size_t i = 0; i < demands.size(); ++i) {
    if (demands[i].prompt) {
      prompts.push_back(i);
    } else {
      --budget;
    }
  }
  // The shortest first: what it leaves of its share is the others'.
  std::stable_sort(prompts.begin(), prompts.end(),
                   [&](size_t a, size_t b) { return demands[a].tokens < demands[b].tokens; });
  for (size_t k = 0; k < prompts.size(); ++k) {
    const auto sharing = static_cast<int64_t>(prompts.size() - k);
    const int64_t share = (budget + sharing - 1) / sharing;
    tokens[prompts[k]] = std::min(demands[prompts[k]].tokens, share);
    budget -= tokens[prompts[k]];
  }
  return tokens;
}

std::vector<int64_t> plan_step_alone(const std::vector<StepDemand>& demands, int64_t budget,
                                     size_t first) {
  std::vector<int64_t> tokens = one_for_each_continued(demands);
  for (size_t k = 0; k < demands.size(); ++k) {
    const size_t i = (first + k) % demands.size();
    if (!demands[i].prompt) continue;
    tokens[i] = std::min(demands[i].tokens, budget);
    break;
  }
  return tokens;
}

}  // namespace attnres
