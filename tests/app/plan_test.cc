#include <gmock/gmock.h>

#include <nlohmann/json.hpp>
#include <regex>

#include "attnres/plan/cluster.h"
#include "tests/app/program.h"
#include "tests/plan/small_plans.h"

namespace attnres::testing::plan_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kRecipes = std::string(ATTNRES_SOURCE_DIR) + "/recipes/";

std::string planned(const std::string& recipe, const std::string& cluster) {
  return fmt::format("plan --recipe {0}{1}.json --cluster {0}clusters/{2}.json ", kRecipes, recipe,
                     cluster);
}

TEST(PlanCommand, ShowsAPlan) {
  const Result result = run_program(planned("large-block-attn-res", "h100-node") +
                                    "--set parallel.pipeline=4 parallel.data=2 parallel.virtual=2 "
                                    "train.precision=bfloat16 --context 131072 --chunk 16384");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  for (const char* part : {"8 of 8 devices", "x 4 ranks x 2 stages, owned, recomputed", "It fits",
                           "naive", "gradients, over replicas", "bubble",
                           "8 representations of each: 2.0 GiB", "18-23, 42-47+out"}) {
    EXPECT_THAT(result.out, HasSubstr(part));
  }
}

TEST(PlanCommand, IsJsonForPrograms) {
  const Result result = run_program(planned("tiny-block-attn-res", "rtx-4090-workstation") +
                                    "--set parallel.pipeline=2 train.accumulate=4 --json");
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json["memory"]["ranks"].size(), 2u);
  EXPECT_EQ(json["memory"]["fits"], true);
  EXPECT_EQ(json["mixing"]["residual"], 3);
  EXPECT_GT(json["time"]["tokens_per_second"], 0);
  // Its stages meet at a block's end: b_0 to b_4 of 2048 / 4 tokens, 4 times.
  EXPECT_EQ(json["traffic"]["policies"]["owned"]["sealed"], 5 * 128 * 2048 * 4);
}

TEST(PlanCommand, Searches) {
  const Result table = run_program(planned("large-block-attn-res", "h100-node") + "--search");
  ASSERT_EQ(table.exit_code, 0) << table.err;
  EXPECT_THAT(table.out, HasSubstr("--set parallel.data="));
  const Json json = Json::parse(
      run_program(planned("large-block-attn-res", "h100-node") + "--search --json").out);
  EXPECT_GT(json["best"].size(), 1u);
  EXPECT_THAT(run_program(planned("tiny-block-attn-res", "h100-node") + "--search").out,
              HasSubstr("It leaves 6 devices idle: a step has 1 part"));
  const Result none = run_program(planned("kimi-linear-48b", "rtx-4090-workstation") + "--search");
  EXPECT_EQ(none.exit_code, 0);
  EXPECT_THAT(none.out, AllOf(HasSubstr("None of"), HasSubstr("2 devices is all")));
}

TEST(PlanCommand, SaysWhatDoesNotFit) {
  const Result result =
      run_program(planned("kimi-linear-48b", "h100-node") + "--set parallel.pipeline=8");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("It does not fit. Rank"));
}

TEST(PlanCommand, RefusesWhatCannotBePlanned) {
  const auto refused = [](const std::string& arguments, const std::string& part) {
    const Result result = run_program(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_THAT(result.err, StartsWith("attnres: error: "));
    EXPECT_THAT(result.err, HasSubstr(part));
  };
  const std::string tiny = planned("tiny-block-attn-res", "rtx-4090-workstation");
  refused("plan", "name a recipe and a cluster");
  refused(tiny + "--set parallel.pipeline=3",
          "3 processes, but cluster rtx-4090-workstation has 2");
  refused(tiny + "--set parallel.virtual=2", "need parallel.pipeline to be 2 or more");
  refused(tiny + "--context 0", "expected a whole number from 1");
  refused(tiny + "--chunk -5", "expected a whole number from 1");
  refused(tiny + "--devices 2", "--devices is for --write-cluster");
  refused(tiny + "--write-cluster x.json", "plans nothing");
  refused("plan --search --write-cluster x.json", "plans nothing");
  const fs::path folder = fresh_folder("clusters");
  Json json = cluster_json();
  json["devices"] = 0;
  write_text(folder / "zero.json", json.dump());
  refused(fmt::format("plan --recipe {}tiny-residual.json --cluster {}", kRecipes,
                      (folder / "zero.json").string()),
          "zero.json: devices: expected a whole number from 1");
}

TEST(PlanCommand, MeasuresThisMachine) {
  const fs::path file = fresh_folder("clusters") / "here.json";
  const Result result = run_program("plan --write-cluster " + file.string());
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Cluster cluster = read_cluster(file);
  EXPECT_EQ(cluster.devices, 1);
  EXPECT_GT(cluster.flops("float32"), 1e8);
  EXPECT_EQ(run_program(fmt::format("plan --recipe {}tiny-residual.json --cluster {}", kRecipes,
                                    file.string()))
                .exit_code,
            0);
  const Result again = run_program("plan --write-cluster " + file.string());
  EXPECT_EQ(again.exit_code, 1);
  EXPECT_THAT(again.err, HasSubstr("--write-cluster " + file.string() + ": is there already"));
  EXPECT_EQ(run_program("plan --write-cluster other.json --devices 4096").exit_code, 2);

  const fs::path of_recipe = file.parent_path() / "of-recipe.json";
  const Result steps = run_program(
      fmt::format("plan --write-cluster {} --recipe {}tiny-residual.json --set model.layers=1 "
                  "train.context=32",
                  of_recipe.string(), kRecipes));
  ASSERT_EQ(steps.exit_code, 0) << steps.err;
  EXPECT_THAT(steps.out, HasSubstr("a step of tiny-residual takes one "));
  EXPECT_EQ(read_cluster(of_recipe).devices, 1);
}

}  // namespace
}  // namespace attnres::testing::plan_test
