// What writing with a model takes on this machine, for the plan subcommand.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnres {

struct InferencePlanOptions {
  std::string model, recipe, weights;  // a model, or a recipe and how its weights are stored
  std::vector<std::string> overrides;  // of the recipe
  int64_t context = 0;                 // 0: not given
  double memory = 0;                   // GiB of another machine; 0: this one's
  bool json = false;

  bool is_asked() const { return !model.empty() || !weights.empty(); }
};

void plan_inference(const InferencePlanOptions& options);

}  // namespace attnres
