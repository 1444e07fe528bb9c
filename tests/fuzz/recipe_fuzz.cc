// Recipes.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/train/recipe/recipe.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::recipe_fuzz {
namespace {

using namespace testing;

void run(std::string_view input) {
  const Recipe recipe = load_recipe(put_file("recipe.json", input), {});
  parse_recipe(recipe_to_json(recipe));
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds;
  for (const std::string& path : repository_files("recipes", ".json")) {
    const bool is_recipe = path.find('/') == path.rfind('/');
    if (is_recipe) seeds.push_back(repository_file(path));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"recipe", run, seeds});

}  // namespace
}  // namespace attnres::recipe_fuzz
