// What a plan says is sent and held, against what processes count.
#include <ATen/Parallel.h>
#include <ATen/ops/randint.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "attnres/layers/experts.h"
#include "attnres/train/parallel/parallel_steps.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/text/run_text.h"
#include "tests/parallel/thread_communicator.h"
#include "tests/plan/small_plans.h"

namespace attnres::testing::plan_traffic_test {
namespace {

using enum TransferPolicy;

const PolicyTraffic& under(TransferPolicy policy, const StepTraffic& traffic) {
  const auto is_it = [&](const PolicyTraffic& candidate) { return candidate.policy == policy; };
  return *std::find_if(traffic.policies.begin(), traffic.policies.end(), is_it);
}

StepTraffic traffic_of(const Recipe& recipe) {
  return plan_traffic(PlannedModel(recipe), layout_of(recipe));
}

// One step of real training, each process on a thread.
ParallelTraffic train_a_step(const Recipe& recipe) {
  ParallelTraffic traffic;
  const int64_t vocab_size = recipe.tokenizer.vocab_size;
  std::vector<int32_t> tokens(4096);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % vocab_size);
  run_on_threads(static_cast<int>(recipe.parallel.processes()), [&](Communicator& world) {
    at::set_num_threads(1);
    const Vocabulary vocabulary = {.size = vocab_size, .end_of_document = 0};
    const ParallelPlace place(recipe, vocab_size, world);
    const ModelPart of_place = place.part();
    Training part(std::make_unique<Transformer>(recipe.model, vocab_size, /*seed=*/1,
                                                precision_of(recipe.train), at::kCPU,
                                                of_place.sites, of_place.group),
                  recipe.train, of_place.factors);
    ParallelSteps steps(place, part, batches_of({{TrainingTokens(tokens)}}, recipe, vocabulary));
    steps.run(/*step=*/1, /*learning_rate=*/1e-3);
    const ParallelTraffic counted = steps.end();
    if (world.rank() == 0) traffic = counted;
  });
  return traffic;
}

double sent(const ParallelTraffic& traffic, Traffic kind) {
  return static_cast<double>(traffic.bytes_sent[static_cast<int>(kind)]);
}

void expect_counted(const Recipe& recipe, const std::string& where) {
  const ParallelTraffic counted = train_a_step(recipe);
  const PlannedModel model(recipe);
  const Layout layout = layout_of(recipe);
  const StepTraffic planned = plan_traffic(model, layout);
  const PolicyTraffic& of_policy = under(layout.policy, planned);
  EXPECT_EQ(of_policy.sealed, sent(counted, Traffic::sealed)) << where;
  EXPECT_EQ(of_policy.open, sent(counted, Traffic::open)) << where;
  EXPECT_EQ(of_policy.sealed_gradients, sent(counted, Traffic::sealed_gradient)) << where;
  EXPECT_EQ(of_policy.open_gradients, sent(counted, Traffic::open_gradient)) << where;
  EXPECT_EQ(planned.tensor_groups, sent(counted, Traffic::tensor_group)) << where;
  EXPECT_EQ(planned.replica_gradients + planned.shared_gradients,
            sent(counted, Traffic::parameter_gradient))
      << where;
  EXPECT_EQ(planned.replica_parameters, sent(counted, Traffic::parameter)) << where;
  const MemoryPlan memory = plan_memory(model, layout, stages_of(model, layout), small_cluster());
  for (size_t rank = 0; rank < counted.peak_received_bytes.size(); ++rank) {
    EXPECT_EQ(memory.ranks[rank / layout.tensor % layout.size.ranks].received,
              static_cast<double>(counted.peak_received_bytes[rank]))
        << where << ", rank " << rank;
  }
}

// Even and uneven stages, which end inside blocks and layers; blocks that do not divide the depth.
TEST(PlanTraffic, IsWhatProcessesCount) {
  for (const int64_t block_size : {2, 3, 4}) {
    for (const auto& [data, pipeline, virtual_stages] :
         std::vector<std::array<int, 3>>{{1, 2, 1}, {1, 3, 1}, {1, 2, 2}, {2, 2, 1}, {1, 3, 2}}) {
      for (const char* policy : {"naive", "report", "owned"}) {
        const Recipe recipe = small_plan_recipe(blocks_of(block_size), 5,
                                                {{"data", data},
                                                 {"pipeline", pipeline},
                                                 {"virtual", virtual_stages},
                                                 {"policy", policy}});
        expect_counted(recipe, fmt::format("{} x {} x {}, {}, blocks of {}", data, pipeline,
                                           virtual_stages, policy, block_size));
      }
    }
  }
}

TEST(PlanTraffic, IsWhatProcessesCountOfOtherMechanisms) {
  for (const char* type : {"residual", "attn_res", "mhc", "dense_former"}) {
    expect_counted(small_plan_recipe({{"type", type}}, 3, {{"pipeline", 2}, {"virtual", 2}}), type);
  }
  Json normed = blocks_of(4);
  normed["block_summary"] = "rms";
  expect_counted(small_plan_recipe(normed, 3, {{"pipeline", 3}}), "sums of RMS");
  for (const Json& mixing : {Json{{"type", "delta_attn_res"}, {"block_size", 2}},
                             Json{{"type", "mhc"}, {"single_pass", true}},
                             Json{{"type", "muddformer"}, {"pre_post_norm", true}}}) {
    expect_counted(small_plan_recipe(mixing, 3, {{"pipeline", 2}, {"virtual", 2}}), mixing.dump());
  }
}

TEST(PlanTraffic, IsWhatProcessesCountOfTensorGroups) {
  const Json parallel = {{"data", 2}, {"pipeline", 2}, {"tensor", 2}};
  for (const char* type : {"residual", "block_attn_res", "lime", "mrla", "muddformer"}) {
    for (const bool recompute : {false, true}) {
      expect_counted(small_plan_recipe({{"type", type}}, 3, parallel, {{"recompute", recompute}}),
                     fmt::format("{}, recomputed: {}", type, recompute));
    }
  }
  Json values = blocks_of(4);
  values["value_query"] = true;
  expect_counted(small_plan_recipe(values, 3, parallel), "queries for values");
  Recipe latent = small_plan_recipe(blocks_of(2), 3, {{"tensor", 2}});
  latent.model.settings<ExpertsSettings>() = {
      .count = 4, .chosen = 2, .width = 24, .latent_width = 16};
  expect_counted(latent, "latent experts");
}

TEST(PlanTraffic, CountsSharedParametersOnEachRank) {
  Recipe recipe = small_plan_recipe(blocks_of(2), 3, {{"data", 2}, {"pipeline", 2}});
  EXPECT_EQ(traffic_of(recipe).shared_gradients, 0);
  recipe.model.tie_embeddings = true;
  // The embedding's gradient, in float32, of both ranks of both replicas.
  EXPECT_EQ(traffic_of(recipe).shared_gradients, 2 * 2 * 256 * 32 * 4);
  expect_counted(recipe, "tied");
  recipe.parallel.shard_optimizer = true;
  // Only the ranks of replica 0 hand it on.
  EXPECT_EQ(traffic_of(recipe).shared_gradients, 2 * 256 * 32 * 4);
  expect_counted(recipe, "tied and sharded");
}

TEST(PlanTraffic, CountsAShardedOptimizer) {
  Recipe recipe = small_plan_recipe(blocks_of(2), 5, {{"data", 2}, {"pipeline", 2}});
  EXPECT_EQ(traffic_of(recipe).replica_parameters, 0);
  recipe.parallel.shard_optimizer = true;
  EXPECT_EQ(traffic_of(recipe).replica_parameters,
            4.0 * static_cast<double>(PlannedModel(recipe).cost().parameters().count()));
  expect_counted(recipe, "sharded");
}

// Blocks of section 4.1, of a micro-batch: 28, 22 and 18 where each of 8 stages seals one, and the
// token embedding 7, 3 and 3 times.
TEST(PlanTraffic, IsThatOfTheReport) {
  const auto tensors = [](const Recipe& recipe) {
    const StepTraffic traffic = traffic_of(recipe);
    return std::vector<int64_t>{under(naive, traffic).sealed_tensors,
                                under(report, traffic).sealed_tensors,
                                under(owned, traffic).sealed_tensors};
  };
  const Json parallel = {{"pipeline", 4}, {"virtual", 2}};
  EXPECT_EQ(tensors(small_plan_recipe(blocks_of(2), 8, parallel)),
            (std::vector<int64_t>{28 + 7, 22 + 3, 18 + 3}));
  // Fig. 3: every block spans two stages. The report saves 6 transfers, `owned` 8.
  const std::vector<int64_t> of_figure = tensors(small_plan_recipe(blocks_of(4), 8, parallel));
  EXPECT_EQ(of_figure[0] - of_figure[1], 6);
  EXPECT_EQ(of_figure[0] - of_figure[2], 8);
}

TEST(PlanTraffic, GradientsOfSealedTensorsAreWiderThanBfloat16) {
  const StepTraffic traffic = traffic_of(
      small_plan_recipe(blocks_of(2), 8, {{"pipeline", 4}}, {{"precision", "bfloat16"}}));
  EXPECT_GT(under(owned, traffic).sealed, 0);
  EXPECT_EQ(under(owned, traffic).sealed_gradients, 2 * under(owned, traffic).sealed);
  EXPECT_EQ(under(owned, traffic).open_gradients, under(owned, traffic).open);
}

// Table 1, of L = 128 sublayers, blocks of 16 and 4 streams. For Full Attention Residuals it has
// 24 d in groups of 16 sites; the program's are of 11.
TEST(PlanTraffic, OfMixingIsTable1) {
  const auto traffic = [](const Json& mixing) {
    return mixing_traffic(small_plan_recipe(mixing, 64, Json::object()).model);
  };
  EXPECT_EQ(traffic(blocks_of(16)).of_mechanism, 5.5);
  EXPECT_EQ(traffic(blocks_of(16)).of_residual, 3);
  EXPECT_EQ(traffic({{"type", "mhc"}}).of_mechanism, 34);
  EXPECT_EQ(traffic({{"type", "mhc"}, {"single_pass", true}}).of_mechanism, 10);
  EXPECT_EQ(traffic({{"type", "residual"}}).of_mechanism, 3);
  const Json delta = {{"type", "delta_attn_res"}, {"block_size", 16}};
  EXPECT_EQ(traffic(delta).of_mechanism, 5.5 + 2);  // the residual stream, read and written
  EXPECT_NEAR(traffic({{"type", "attn_res"}}).of_mechanism, 11 + 128 / 11.0, 1e-9);
  EXPECT_LE(traffic({{"type", "attn_res"}}).of_mechanism, 24);
}

}  // namespace
}  // namespace attnres::testing::plan_traffic_test
