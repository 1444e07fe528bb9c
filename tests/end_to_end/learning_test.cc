// Every mechanism learns, in whole runs of the trainer in this process.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <set>

#include "attnres/data/evaluation_batches.h"
#include "attnres/text/bytes.h"
#include "tests/end_to_end/runs.h"
#include "tests/model/small_models.h"

namespace attnres::testing::learning_test {
namespace {

// Entropy of the frequencies of the bytes that are held out, in nats; the end of the document is
// one.
double held_out_entropy(const std::string& text) {
  const std::string held_out = validation_text(text) + '\0';
  const auto size = static_cast<double>(held_out.size());
  std::array<double, 256> counts = {};
  for (const unsigned char byte : held_out) ++counts[byte];
  double entropy = 0;
  for (const double count : counts) {
    if (count > 0) entropy -= count / size * std::log(count / size);
  }
  return entropy;
}

const std::string& learning_text() {
  static const std::string text = real_text(100000);
  return text;
}

Json learning_recipe(Json recipe) {
  recipe["train"].update({{"steps", 300},
                          {"batch_size", 16},
                          {"learning_rate", 0.01},
                          {"eval_every", 50},
                          {"eval_tokens", 1000000},
                          {"checkpoint_every", 300}});
  return recipe;
}

// Trains in the workshop's folder "run".
void expect_learns(const Workshop& workshop) {
  const TrainSummary summary = workshop.train_here("run");
  const double entropy = held_out_entropy(learning_text());
  EXPECT_NEAR(summary.unigram_entropy, entropy, 1e-9);
  EXPECT_LT(summary.final_loss, entropy - 0.3);
  ::testing::Test::RecordProperty("loss", std::to_string(summary.final_loss));
}

class Learning : public ::testing::TestWithParam<Mixing> {
 protected:
  const Json recipe_ = learning_recipe(tiny_recipe(GetParam().json));
};

TEST_P(Learning, GetsBelowTheUnigramEntropy) {
  expect_learns(Workshop(recipe_, learning_text()));
}

TEST_P(Learning, DoesNotWithoutALearningRate) {
  Json still = recipe_;
  still["train"].update({{"learning_rate", 0}, {"steps", 20}});
  const TrainSummary summary = Workshop(still, learning_text()).train_here("run");
  EXPECT_GT(summary.final_loss, summary.unigram_entropy);
  EXPECT_NEAR(summary.final_loss, std::log(256), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Mechanisms, Learning, ::testing::ValuesIn(every_mechanism()),
                         [](const auto& info) { return info.param.name; });

class LearningWithMuon : public Learning {};

TEST_P(LearningWithMuon, GetsBelowTheUnigramEntropy) {
  Json with_muon = recipe_;
  with_muon["train"]["optimizer"] = "muon";
  expect_learns(Workshop(with_muon, learning_text()));
}

INSTANTIATE_TEST_SUITE_P(Mechanisms, LearningWithMuon,
                         ::testing::Values(Mixing{"residual", residual()},
                                           Mixing{"block_attn_res", block_attn_res(2)}),
                         [](const auto& info) { return info.param.name; });

// Least and most tokens of an expert over its site's mean, in the first step of a recipe.
std::pair<double, double> first_loads(const Json& json, const std::filesystem::path& data) {
  const Recipe recipe = parse_recipe(json);
  const Batch batch = first_batch(data, recipe.train.context, recipe.train.batch_size);
  ExpertLoads loads;
  Transformer(recipe.model, ByteTokenizer().vocab_size(), recipe.train.seed)
      .loss(batch.inputs_BT, batch.targets_BT, {.expert_loads = &loads});
  std::pair<double, double> range = {INFINITY, 0};
  for (const auto& [site, load] : loads) {
    const at::Tensor relative = load.to(at::kDouble) / load.to(at::kDouble).mean();
    range.first = std::min(range.first, relative.min().item<double>());
    range.second = std::max(range.second, relative.max().item<double>());
  }
  return range;
}

TEST(LearningWithExperts, GetsBelowTheUnigramEntropyAndReportsTheirLoad) {
  const Json recipe = learning_recipe(kimi_recipe());
  const Workshop workshop(recipe, learning_text());
  expect_learns(workshop);
  const RunPaths run{workshop.folder("run")};
  const auto [least, most] = first_loads(recipe, workshop.data());
  const std::vector<Json> metrics = read_lines(run.metrics());
  EXPECT_NEAR(metrics.at(0).at("expert_load_min").get<double>(), least, 1e-12);
  EXPECT_NEAR(metrics.at(0).at("expert_load_max").get<double>(), most, 1e-12);
  EXPECT_NE(metrics.at(1).at("expert_load_max"), metrics.at(0).at("expert_load_max"));
  std::set<int> sites;
  for (const Json& line : read_lines(run.probes())) {
    if (line["name"] != "expert_load") continue;
    sites.insert(line["site"].get<int>());
    double sum = 0;
    for (const Json& share : line["value"]) sum += share.get<double>();
    EXPECT_NEAR(sum, 2, 1e-6);  // two experts a token
  }
  EXPECT_EQ(sites, (std::set<int>{3, 5}));  // the first layer is dense
}

}  // namespace
}  // namespace attnres::testing::learning_test
