#include "attnres/study/model_look.h"

#include <fmt/core.h>

#include <algorithm>

#include "attnres/parameters/weight_format.h"

namespace attnres {
namespace fs = std::filesystem;

std::string ModelLook::file_name() const {
  return weights.empty() ? "inspection.json" : fmt::format("loss-{}.json", weights);
}

std::string ModelLook::done() const {
  return weights.empty() ? "inspected" : fmt::format("scored with {} weights", weights);
}

std::vector<std::string> ModelLook::command(const StudyRun& run, const fs::path& folder) const {
  if (weights.empty()) return {"inspect", "--model", folder.string(), "--all", "--json"};
  return {"eval",
          "--run",
          folder.string(),
          "--weights",
          weights,
          "--max-tokens",
          std::to_string(run.recipe.train.eval_tokens),
          "--json"};
}

std::vector<ModelLook> model_looks(const StudyRecipe& study) {
  std::vector<ModelLook> looks;
  if (study.inspect) looks.emplace_back();
  const std::string whole = blocks_of(WeightFormat::f32).name;
  const auto& formats = study.weights;
  if (!formats.empty() && std::find(formats.begin(), formats.end(), whole) == formats.end()) {
    looks.push_back({whole});
  }
  for (const std::string& format : formats) looks.push_back({format});
  return looks;
}

}  // namespace attnres
