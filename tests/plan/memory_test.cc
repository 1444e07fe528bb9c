#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "attnres/plan/fit.h"
#include "attnres/train/estimate/estimate.h"
#include "attnres/train/optimizers/optimizer.h"
#include "tests/plan/small_plans.h"

namespace attnres::testing::plan_memory_test {
namespace {

using ::testing::HasSubstr;

MemoryPlan memory_of(const Recipe& recipe, const Cluster& cluster = small_cluster()) {
  const PlannedModel model(recipe);
  const Layout layout = layout_of(recipe);
  return plan_memory(model, layout, stages_of(model, layout), cluster);
}

Json kimi_model() {
  return {{"layers", 3},
          {"width", 32},
          {"heads", 2},
          {"attention", {"delta", "delta", "latent"}},
          {"experts", {{"count", 4}, {"chosen", 2}, {"width", 24}}},
          {"depth_mixing", blocks_of(2)}};
}

// The first process of a tensor group that nothing is computed with.
class FirstOfGroup : public TensorGroup {
 public:
  explicit FirstOfGroup(int size) : TensorGroup({0, size}) {}
  at::Tensor all_gather(const at::Tensor& part, int64_t) const override { return part; }
  at::Tensor reduce_scatter(const at::Tensor& whole) const override { return whole; }
};

// What a process of each rank would really make.
void expect_held(const Recipe& recipe) {
  const MemoryPlan memory = memory_of(recipe);
  const PlannedModel model(recipe);
  const PipelinePlan stages = stages_of(model, layout_of(recipe));
  const FirstOfGroup group(static_cast<int>(recipe.parallel.tensor));
  for (int rank = 0; rank < stages.size.ranks; ++rank) {
    const Transformer held(recipe.model, model.vocab_size, /*seed=*/1, at::kFloat, at::kCPU,
                           stages.sites_of(rank), &group);
    EXPECT_EQ(memory.ranks[rank].parameters, held.parameters().count()) << rank;
    EXPECT_EQ(memory.ranks[rank].weights, 4.0 * held.parameters().count()) << rank;
    EXPECT_EQ(memory.ranks[rank].gradients, memory.ranks[rank].weights) << rank;
    int64_t moments = 0;
    const std::vector<UpdateFactors> ones(held.parameters().all().size());
    const Optimizer optimizer(held.parameters(), recipe.train, ones);
    for (const auto& [name, moment] : optimizer.state()) moments += moment.numel();
    EXPECT_EQ(memory.ranks[rank].moments, 4.0 * moments) << rank;
  }
}

TEST(PlanMemory, IsWhatEachRankHolds) {
  expect_held(small_plan_recipe(blocks_of(3), 5, {{"pipeline", 3}, {"virtual", 2}}));
  expect_held(small_plan_recipe({{"type", "depth_attention"}}, 4, {{"pipeline", 4}}));
  for (const int tensor : {1, 2}) {
    Recipe kimi =
        small_plan_recipe(blocks_of(2), 3, {{"pipeline", 2}, {"virtual", 2}, {"tensor", tensor}},
                          {{"optimizer", "muon"}});
    kimi.model = read_model_config(kimi_model());
    expect_held(kimi);
  }
}

// Each of a tensor group's two processes has half of what is cut, and half of the tokens.
TEST(PlanMemory, IsSharedByATensorGroup) {
  const auto first = [](int tensor) {
    return memory_of(small_plan_recipe(blocks_of(2), 8, {{"pipeline", 2}, {"tensor", tensor}},
                                       {{"context", 512}}))
        .ranks[0];
  };
  const RankMemory alone = first(1), shared = first(2);
  EXPECT_LT(shared.weights, alone.weights);
  EXPECT_GT(2 * shared.weights, alone.weights);
  EXPECT_LT(shared.activations, 0.7 * alone.activations);
  EXPECT_GT(2 * shared.activations, alone.activations);
  EXPECT_EQ(2 * shared.waiting_gradients, alone.waiting_gradients);
  EXPECT_EQ(shared.in_flight, alone.in_flight);
}

// The one of three replicas with most counts; together they have each moment once.
TEST(PlanMemory, SharesMomentsOverReplicas) {
  Recipe recipe = small_plan_recipe(blocks_of(3), 5, {{"pipeline", 2}},
                                    {{"batch_size", 12}, {"accumulate", 12}});
  const MemoryPlan alone = memory_of(recipe);
  recipe.parallel.data = 3;
  recipe.parallel.shard_optimizer = true;
  const MemoryPlan sharded = memory_of(recipe);
  for (size_t rank = 0; rank < 2; ++rank) {
    const double third = alone.ranks[rank].moments / 3;
    EXPECT_GE(sharded.ranks[rank].moments, third);
    EXPECT_LT(sharded.ranks[rank].moments, 1.1 * third);
    EXPECT_EQ(sharded.ranks[rank].weights, alone.ranks[rank].weights);
  }
  recipe.parallel.shard_optimizer = false;
  EXPECT_EQ(memory_of(recipe).ranks[0].moments, alone.ranks[0].moments);
}

TEST(PlanMemory, OfRanksAddsUpToTheModel) {
  for (const bool tied : {false, true}) {
    Recipe recipe = small_plan_recipe(blocks_of(4), 5, {{"pipeline", 5}, {"virtual", 2}});
    recipe.model.tie_embeddings = tied;
    int64_t held = 0;
    for (const RankMemory& rank : memory_of(recipe).ranks) held += rank.parameters;
    const int64_t whole = PlannedModel(recipe).cost().parameters().count();
    EXPECT_EQ(held, whole + (tied ? 256 * 32 : 0));
  }
}

TEST(PlanMemory, IsOfTheMostInFlight) {
  const Recipe recipe = small_plan_recipe(blocks_of(2), 8, {{"pipeline", 4}, {"virtual", 2}});
  const MemoryPlan memory = memory_of(recipe);
  const PipelineSchedule schedule = interleaved_1f1b({4, 2}, 8);
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(memory.ranks[rank].in_flight, most_in_flight(schedule[rank]));
  }
  // Equal stages, of which rank 0 has 11 and rank 2 has 7: what is beside them is one backward's.
  const double one = (memory.ranks[0].activations - memory.ranks[2].activations) / 4;
  const ModelCost cost(recipe.model, 256);
  EXPECT_NEAR(one, 16 * 4 * cost.kept_until_backward({0, 2}, false), 0.1 * one);
}

// There is one micro-batch, and each stage seals a block. Rank 0 has stages 0 and 2: the backward
// of 2 leaves gradients of b_0 and b_1 for that of 0; on rank 1, that of 3 leaves b_0 to b_2 for
// that of 1. By `naive` each stage's copies are its own, and all gradients go back with them.
TEST(PlanMemory, CountsGradientsThatWait) {
  const auto waiting = [](const char* policy) {
    const Recipe recipe =
        small_plan_recipe(blocks_of(2), 4, {{"pipeline", 2}, {"virtual", 2}, {"policy", policy}},
                          {{"batch_size", 1}, {"accumulate", 1}, {"precision", "bfloat16"}});
    std::vector<double> blocks;  // of 16 tokens in float32
    for (const RankMemory& rank : memory_of(recipe).ranks) {
      blocks.push_back(rank.waiting_gradients / (16 * 32 * 4));
      EXPECT_LE(rank.in_step, rank.activations + rank.received + rank.waiting_gradients);
      EXPECT_GE(rank.in_step, rank.activations);
    }
    return blocks;
  };
  EXPECT_EQ(waiting("owned"), (std::vector<double>{2, 3}));
  EXPECT_EQ(waiting("report"), (std::vector<double>{1, 2}));
  EXPECT_EQ(waiting("naive"), (std::vector<double>{0, 0}));
}

// One process: the estimate that training prints, from the same parts.
TEST(PlanMemory, OfOneProcessIsTheEstimate) {
  for (const bool recompute : {false, true}) {
    const Recipe recipe =
        small_plan_recipe(blocks_of(4), 8, Json::object(),
                          {{"recompute", recompute}, {"context", 512}, {"batch_size", 64}});
    const double planned = memory_of(recipe).ranks[0].total + kLibraryBytes;
    const auto estimated =
        static_cast<double>(estimate(recipe, 256, {.matmul = 1e11, .copy = 1e10}).bytes);
    EXPECT_NEAR(planned, estimated, 0.01 * estimated);
  }
}

TEST(PlanMemory, RecomputationKeepsLess) {
  const auto activations = [](bool recompute) {
    return memory_of(small_plan_recipe(blocks_of(2), 8, {{"pipeline", 2}},
                                       {{"recompute", recompute}, {"context", 512}}))
        .ranks[0]
        .activations;
  };
  EXPECT_LT(activations(true), activations(false) / 2);
}

TEST(PlanMemory, CountsCopiesInBfloat16) {
  const auto weights = [](const char* precision) {
    const Recipe recipe =
        small_plan_recipe(blocks_of(2), 4, {{"pipeline", 2}}, {{"precision", precision}});
    return memory_of(recipe).ranks[0].weights;
  };
  EXPECT_EQ(weights("bfloat16"), 1.5 * weights("float32"));
}

// A probe is a micro-batch of one window, recomputed where steps are: no more than a step's.
TEST(PlanMemory, OfProbesIsNoMoreThanOfSteps) {
  for (const bool recompute : {false, true}) {
    const Recipe recipe = small_plan_recipe(blocks_of(2), 8, {{"pipeline", 4}},
                                            {{"recompute", recompute}, {"context", 64}});
    for (const RankMemory& rank : memory_of(recipe).ranks) {
      EXPECT_EQ(rank.between_steps, 0);
      EXPECT_EQ(rank.total,
                rank.weights + rank.gradients + rank.moments + kFragmentation * rank.in_step);
    }
  }
}

// Devices with so much memory.
Cluster with_memory(double bytes) {
  Json json = cluster_json();
  json["device"]["memory"] = bytes;
  return parse_cluster(json);
}

TEST(PlanMemory, SaysWhatIsLacking) {
  const Recipe recipe = small_plan_recipe(blocks_of(2), 4, {{"pipeline", 2}});
  const PlannedModel model(recipe);
  const auto explain = [&](double bytes) {
    const Cluster cluster = with_memory(bytes);
    return explain_shortage(model, layout_of(recipe), memory_of(recipe, cluster), cluster);
  };
  const MemoryPlan memory = memory_of(recipe, with_memory(80e9));
  const RankMemory& fullest = memory.ranks[memory.fullest()];
  EXPECT_EQ(explain(fullest.total), "");
  EXPECT_THAT(explain(fullest.total - 1), HasSubstr("train.recompute=true"));
  const double standing = fullest.weights + fullest.gradients + fullest.moments;
  EXPECT_THAT(explain(standing - 1), HasSubstr("More ranks (parallel.pipeline)"));
  EXPECT_THAT(explain(1000), ::testing::AllOf(HasSubstr("No layout helps"),
                                              HasSubstr("Experts are not spread over devices")));
}

}  // namespace
}  // namespace attnres::testing::plan_memory_test
