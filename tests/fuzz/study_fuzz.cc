// Studies, and the runs of their grids.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/study/study_grid.h"
#include "attnres/study/study_recipe.h"
#include "attnres/support/json.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::study_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const StudyRecipe study = read_study(put_file("study.json", input));
  // The others are like the first.
  if (combinations(study.axes).size() * study.seeds <= 100) plan_runs(study, {.smoke = true});
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  for (const std::string& path : repository_files("recipes/studies", ".json")) {
    Json study = parse_json(repository_file(path), path);
    if (study["base"].is_string()) {
      const std::string base = study["base"].get<std::string>();
      study["base"] = parse_json(repository_file("recipes/studies/" + base), base);
    }
    seeds.push_back(study.dump());
  }
  return seeds;
}

const ListedFuzzTarget kListed({"study", run, seeds});

}  // namespace
}  // namespace attnres::study_fuzz
