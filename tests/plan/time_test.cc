#include <gtest/gtest.h>

#include "attnres/parallel/gradient_sums.h"
#include "attnres/plan/step_time.h"
#include "attnres/plan/this_machine.h"
#include "attnres/train/estimate/estimate.h"
#include "tests/plan/small_plans.h"

namespace attnres::testing::plan_time_test {
namespace {

StepTime time_of(const Recipe& recipe, const Cluster& cluster = small_cluster()) {
  const PlannedModel model(recipe);
  const Layout layout = layout_of(recipe);
  return plan_time(model, layout, stages_of(model, layout), cluster);
}

TEST(PlanTime, BubbleIsThatOfEqualStages) {
  for (const int P : {1, 2, 4}) {
    for (const int V : {1, 2, 3}) {
      if (P == 1 && V > 1) continue;
      const int M = 8;
      const Layout layout = {.size = {P, V}, .micro_batches = M};
      const std::vector<StageTimes> equal(P * V, {.forward = 1, .backward = 2});
      const PipelineTime time = simulate_pipeline(layout, equal);
      EXPECT_DOUBLE_EQ(time.bubble, (P - 1.0) / (V * M)) << P << " x " << V;
      EXPECT_DOUBLE_EQ(time.seconds, 3.0 * (V * M + P - 1));
      // Negative control: what is on its way makes it longer.
      std::vector<StageTimes> late = equal;
      for (StageTimes& stage : late) stage.receive = stage.give_back = 1;
      EXPECT_EQ(simulate_pipeline(layout, late).bubble > time.bubble, P > 1);
    }
  }
}

// One process: the estimate that training prints, from the same parts.
TEST(PlanTime, OfOneProcessIsTheEstimate) {
  for (const char* optimizer : {"adamw", "muon"}) {
    const Recipe recipe = small_plan_recipe(blocks_of(4), 8, Json::object(),
                                            {{"optimizer", optimizer}, {"context", 128}});
    const Cluster cluster = small_cluster();
    const double estimated =
        estimate(recipe, 256, {.matmul = 60e12, .copy = 3e12}).seconds_per_step;
    EXPECT_NEAR(time_of(recipe, cluster).seconds, estimated, 1e-9 * estimated) << optimizer;
  }
}

TEST(PlanTime, IsThatOfTheStepThatDevicesAreFittedTo) {
  // How processes would share the model does not matter: what is measured is one with all of it.
  const PlannedModel model(small_plan_recipe(blocks_of(4), 8, {{"pipeline", 2}}));
  const Recipe alone = small_plan_recipe(blocks_of(4), 8, Json::object());
  Cluster cluster = small_cluster();
  const double planned = time_of(alone, cluster).seconds;
  for (const double factor : {4.0, 1.3, 1.0, 0.7, 0.1}) {
    for (const double before : {1.0, 0.5}) {
      cluster.device.efficiency = before;
      const Cluster fitted = fitted_to(factor * planned, model, cluster);
      EXPECT_NEAR(time_of(alone, fitted).seconds, factor * planned, 1e-9 * planned) << factor;
      EXPECT_LE(fitted.device.efficiency, 1);
      EXPECT_EQ(fitted.device.bandwidth > cluster.device.bandwidth, factor < 1);
    }
  }
}

TEST(PlanTime, OfStagesAddsUpToThatOfTheModel) {
  const Recipe recipe = small_plan_recipe(blocks_of(3), 5, {{"pipeline", 3}, {"virtual", 2}});
  const PlannedModel model(recipe);
  Layout layout = layout_of(recipe);
  double forward = 0, backward = 0;
  for (const StageTimes& stage :
       stage_times(model, layout, stages_of(model, layout), small_cluster())) {
    forward += stage.forward;
    backward += stage.backward;
  }
  layout.size = {1, 1};
  const auto whole = stage_times(model, layout, stages_of(model, layout), small_cluster());
  EXPECT_NEAR(forward, whole[0].forward, 1e-9 * forward);
  EXPECT_NEAR(backward, whole[0].backward, 1e-9 * backward);
  EXPECT_EQ(whole[0].receive, 0);
}

TEST(PlanTime, FollowsTheLinks) {
  const Recipe recipe =
      small_plan_recipe(blocks_of(2), 8, {{"pipeline", 4}, {"data", 2}}, {{"context", 512}});
  Json json = cluster_json(8, 8);
  const double before = time_of(recipe, parse_cluster(json)).seconds;
  json["within_node"]["bandwidth"] = 40e9;
  EXPECT_GT(time_of(recipe, parse_cluster(json)).seconds, before);
  json["within_node"]["bandwidth"] = 400e9;
  json["within_node"]["latency"] = 1e-3;
  EXPECT_GT(time_of(recipe, parse_cluster(json)).seconds, before + 3e-3);
  // On nodes of two, ranks 1 and 2 hand over between nodes.
  EXPECT_GT(time_of(recipe, small_cluster(8, 2)).seconds, before);
  // Without anything to send there is no difference.
  const Recipe alone = small_plan_recipe(blocks_of(2), 8, Json::object());
  EXPECT_EQ(time_of(alone, parse_cluster(json)).seconds, time_of(alone, small_cluster()).seconds);
}

TEST(PlanTime, OfCachesIsNotLonger) {
  double last = 1e9;
  for (const char* policy : {"naive", "report", "owned"}) {
    const Recipe recipe =
        small_plan_recipe(blocks_of(2), 16, {{"pipeline", 4}, {"virtual", 4}, {"policy", policy}},
                          {{"context", 4096}});
    const double seconds = time_of(recipe).seconds;
    EXPECT_LT(seconds, last) << policy;
    last = seconds;
  }
}

TEST(PlanTime, FollowsTheDevice) {
  const Recipe recipe = small_plan_recipe(blocks_of(2), 8, {{"pipeline", 2}}, {{"context", 512}});
  const StepTime before = time_of(recipe);
  Json json = cluster_json();
  json["device"]["efficiency"] = 0.5;
  const StepTime half = time_of(recipe, parse_cluster(json));
  EXPECT_GT(half.seconds, before.seconds);
  EXPECT_LT(half.utilisation, before.utilisation);
  EXPECT_NEAR(before.tokens_per_second * before.seconds, 8 * 512, 1e-6);
  EXPECT_LT(before.utilisation, 1);
  json["device"]["efficiency"] = 1;
  json["device"]["bandwidth"] = 1e12;
  EXPECT_GT(time_of(recipe, parse_cluster(json)).seconds, before.seconds);
}

// 2 (n - 1) / n of the gradients' bytes, and 2 log2(n) latencies a bucket, of which there is one:
// its sum begins when the backward has ended.
TEST(PlanTime, CountsSumsOverReplicas) {
  const Recipe recipe = small_plan_recipe(blocks_of(2), 4, {{"data", 4}});
  const auto parameters = static_cast<double>(PlannedModel(recipe).cost().parameters().count());
  EXPECT_NEAR(time_of(recipe).sums, 2 * 0.75 * 4 * parameters / 400e9 + 2 * 2 * 5e-6, 1e-12);
  EXPECT_EQ(time_of(small_plan_recipe(blocks_of(2), 4, Json::object())).sums, 0);
}

// All of many buckets but the last are added up beside a backward that takes longer than they do;
// over a slow link the sums take all of their time, but for the backward's.
TEST(PlanTime, HidesSumsBehindTheBackward) {
  Json json = cluster_json(8, 8);
  Recipe recipe = small_plan_recipe(blocks_of(2), 16, {{"data", 4}}, {{"context", 1 << 16}});
  recipe.model.width = 256;
  recipe.model.ffn_width = 512;
  const auto parameters = static_cast<double>(PlannedModel(recipe).cost().parameters().count());
  ASSERT_GT(4 * parameters, 2.0 * kGradientBucketBytes);
  const double bucket = 2 * 0.75 * kGradientBucketBytes / 400e9 + 2 * 2 * 5e-6;
  EXPECT_NEAR(time_of(recipe, parse_cluster(json)).sums, bucket, 1e-12);
  json["within_node"]["bandwidth"] = 1e6;
  const StepTime slow = time_of(recipe, parse_cluster(json));
  const double all = 2 * 0.75 * 4 * parameters / 1e6;
  EXPECT_LT(slow.sums, all);
  EXPECT_GT(slow.sums, all - slow.pipeline.seconds);
}

}  // namespace
}  // namespace attnres::testing::plan_time_test
