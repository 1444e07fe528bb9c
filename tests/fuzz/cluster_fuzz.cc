// The description of a cluster, and how a small model lies on it.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/plan/plan.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/plan/small_plans.h"

namespace attnres::cluster_fuzz {
namespace {

using namespace testing;

// Of the second part the keys that say how a model is spread.
Recipe read_layout(std::string_view text) {
  Json given = parse_json(text, "layout");
  return small_plan_recipe(blocks_of(2), /*layers=*/4, given.is_object() ? given : Json::object(),
                           {{"accumulate", 8}, {"batch_size", 8}});
}

void run(std::string_view input) {
  const auto parts = parts_of(input, 2);
  const Cluster cluster = read_cluster(put_file("cluster.json", parts[0]));
  const PlannedModel model(read_layout(parts[1].empty() ? "{}" : parts[1]));
  attempt([&] { search_to_json(search_layouts(model, cluster, 2)).dump(); });
  const Plan plan = make_plan(model, layout_of(model.recipe), cluster, {.context = 64, .chunk = 8});
  plan_to_json(plan, model.recipe, cluster).dump();
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds = {
      joined_inputs({cluster_json().dump(), R"({"data":2,"pipeline":2,"virtual":2,"tensor":2})"}),
      joined_inputs({cluster_json(5, 3).dump(), R"({"data":4,"shard_optimizer":true})"})};
  for (const std::string& path : repository_files("recipes/clusters", ".json")) {
    seeds.push_back(repository_file(path));
  }
  return seeds;
}

const ListedFuzzTarget kListed({"cluster", run, seeds});

}  // namespace
}  // namespace attnres::cluster_fuzz
