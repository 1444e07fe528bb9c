#include "attnres/plan/search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/plan/small_plans.h"

namespace attnres::testing::search_test {
namespace {

using ::testing::HasSubstr;

Cluster with_memory(double bytes, int64_t devices = 16) {
  Json json = cluster_json(devices);
  json["device"]["memory"] = bytes;
  return parse_cluster(json);
}

TEST(Search, ListsTheFastestFirst) {
  const PlannedModel model(small_plan_recipe(blocks_of(2), 8, Json::object(), {{"context", 2048}}));
  const SearchResult result = search_layouts(model, with_memory(80e9), 5);
  ASSERT_EQ(result.best.size(), 5u);
  EXPECT_EQ(result.why_not, "");
  for (size_t i = 0; i < result.best.size(); ++i) {
    const FoundLayout& found = result.best[i];
    EXPECT_LE(found.layout.processes(), 16);
    EXPECT_EQ(8 % found.layout.data, 0);
    // As a plan of the same recipe has it.
    const Plan plan = make_plan(model, found.layout, with_memory(80e9));
    EXPECT_EQ(plan.time.seconds, found.time.seconds);
    EXPECT_TRUE(plan.memory.fits());
    EXPECT_EQ(found.time.seconds,
              *std::min_element(found.seconds_by_policy, found.seconds_by_policy + 3));
    if (i > 0) {
      EXPECT_GE(found.time.seconds, result.best[i - 1].time.seconds);
    }
  }
}

// What is left untried could not have been among the best.
TEST(Search, LeavesOutNothingBetter) {
  const PlannedModel model(small_plan_recipe(blocks_of(2), 6, Json::object(), {{"context", 2048}}));
  const Cluster cluster = with_memory(80e9);
  const SearchResult few = search_layouts(model, cluster, 2),
                     all = search_layouts(model, cluster, 1000);
  ASSERT_EQ(few.best.size(), 2u);
  EXPECT_EQ(static_cast<int64_t>(all.best.size()), all.candidates);
  for (size_t i = 0; i < 2; ++i) EXPECT_EQ(few.best[i].time.seconds, all.best[i].time.seconds);
}

TEST(Search, FindsWhatFitsSmallDevices) {
  const PlannedModel model(small_plan_recipe(blocks_of(2), 8, Json::object(), {{"context", 256}}));
  const SearchResult roomy = search_layouts(model, with_memory(80e9), 1);
  ASSERT_EQ(roomy.best.size(), 1u);
  const double less = 0.7 * roomy.best[0].fullest;
  const SearchResult tight = search_layouts(model, with_memory(less), 3);
  ASSERT_FALSE(tight.best.empty());
  for (const FoundLayout& found : tight.best) EXPECT_LE(found.fullest, less);
  EXPECT_GT(tight.best[0].time.seconds, roomy.best[0].time.seconds);
  EXPECT_THAT(tight.why_not, HasSubstr("a device has"));
}

TEST(Search, SaysWhyNothingFits) {
  const PlannedModel model(small_plan_recipe(blocks_of(2), 8, Json::object()));
  const SearchResult result = search_layouts(model, with_memory(1000));
  EXPECT_TRUE(result.best.empty());
  EXPECT_THAT(result.why_not, HasSubstr("No layout helps"));
  EXPECT_THAT(result.why_not, HasSubstr("Experts are not spread over devices"));
  EXPECT_TRUE(search_to_json(result)["nearest_that_does_not_fit"].contains("shortage"));
}

// A model of 48 B parameters, whose weights are not made, on 2048 devices.
TEST(Search, PlansThousandsOfDevices) {
  const std::filesystem::path recipes = std::filesystem::path(ATTNRES_SOURCE_DIR) / "recipes";
  const PlannedModel model(
      load_recipe(recipes / "kimi-linear-48b.json", {"train.precision=bfloat16"}));
  Json json = cluster_to_json(read_cluster(recipes / "clusters" / "h800-32-nodes.json"));
  json["devices"] = 2048;
  const Cluster cluster = parse_cluster(json);
  const SearchResult result = search_layouts(model, cluster);
  ASSERT_FALSE(result.best.empty());
  EXPECT_GT(result.best[0].layout.processes(), 1024);
  const Plan plan = make_plan(model, result.best[0].layout, cluster, {.context = 131072});
  EXPECT_GT(plan.parameters, 48'000'000'000);
  EXPECT_TRUE(plan.memory.fits());
  const Json written = plan_to_json(plan, model.recipe, cluster);
  for (const char* key : {"layout", "memory", "traffic", "mixing", "time", "prefill"}) {
    EXPECT_TRUE(written.contains(key)) << key;
  }
}

TEST(Search, PlansAsManyDevicesAsThereMayBe) {
  const PlannedModel model(
      small_plan_recipe(blocks_of(2), 4, Json::object(),
                        {{"batch_size", 1 << 16}, {"accumulate", 1 << 16}, {"context", 256}}));
  const SearchResult result = search_layouts(model, with_memory(80e9, 1 << 18), 1);
  ASSERT_EQ(result.best.size(), 1u);
  EXPECT_LE(result.best[0].layout.processes(), 1 << 18);
  EXPECT_GT(result.best[0].layout.processes(), 1 << 10);
}

}  // namespace
}  // namespace attnres::testing::search_test
