// What a model is said to take, against the matrix products of a forward pass as they happen.
#include "attnres/model/model_cost.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string_view>

#include "attnres/layers/experts.h"
#include "tests/model/small_models.h"

namespace attnres::model_cost_test {
namespace {

// Multiply-adds of every matrix product on this thread while it lives.
class CountedProducts {
 public:
  CountedProducts() {
    count_ = 0;
    handle_ = at::addThreadLocalCallback(
        at::RecordFunctionCallback([](const at::RecordFunction& function) {
          if (std::string_view(function.name()) == "aten::mm") {
            const at::Tensor a = function.inputs()[0].toTensor();
            count_ += a.numel() * function.inputs()[1].toTensor().size(1);
          }
          return std::unique_ptr<at::ObserverContext>();
        })
            .needsInputs(true)
            .scopes({at::RecordScope::FUNCTION}));
  }
  ~CountedProducts() { at::removeCallback(handle_); }
  CountedProducts(const CountedProducts&) = delete;
  CountedProducts& operator=(const CountedProducts&) = delete;

  int64_t count() const { return count_; }

 private:
  static thread_local int64_t count_;
  at::CallbackHandle handle_;
};

thread_local int64_t CountedProducts::count_ = 0;

double counted_a_token(const ModelConfig& config) {
  constexpr int64_t kTokens = 24;
  const at::NoGradGuard not_recording;
  // In float64, whose products are all libtorch's own.
  const Transformer model(config, testing::kSmallVocabulary, /*seed=*/1, at::kDouble);
  const at::Tensor ids = at::randint(testing::kSmallVocabulary, {2, kTokens / 2}, at::kLong);
  const CountedProducts products;
  model.logits(model.hidden(ids));
  return static_cast<double>(products.count()) / kTokens;
}

TEST(ModelCost, LinearMapsAreTheProductsOfAForwardPass) {
  for (const ModelConfig& config : {testing::small_config(testing::residual()),
                                    testing::kimi_config(true, testing::residual())}) {
    const ModelCost cost(config, testing::kSmallVocabulary);
    EXPECT_EQ(cost.linear_maps() + cost.head(), counted_a_token(config));
    EXPECT_GT(cost.linear_maps(), cost.head());
  }
}

TEST(ModelCost, OfExpertsCountsTheChosen) {
  ModelConfig config = testing::kimi_config(true, testing::residual());
  const double before = ModelCost(config, testing::kSmallVocabulary).linear_maps();
  auto& experts = config.settings<ExpertsSettings>();
  experts.chosen += 1;
  const double after = ModelCost(config, testing::kSmallVocabulary).linear_maps();
  const int64_t width = experts.latent_width > 0 ? experts.latent_width : config.width;
  const auto sites = static_cast<double>(config.layers - experts.dense_layers);
  EXPECT_EQ(after - before, sites * static_cast<double>(3 * experts.width * width));
}

TEST(ModelCost, BetweenTokensGrowsWithTheContextWhereAttentionSeesAll) {
  const ModelCost cost(testing::small_config(testing::residual()), testing::kSmallVocabulary);
  EXPECT_EQ(cost.between_tokens(64), 2 * cost.between_tokens(32));
  EXPECT_GT(cost.between_tokens(32), 0);
}

TEST(ModelCost, OfStagesAddsUpToThatOfTheModel) {
  // `depth_attention` has maps that many sites use.
  for (const ModelConfig& config : {testing::kimi_config(true, testing::block_attn_res(4)),
                                    testing::small_config({{"type", "depth_attention"}}, 5)}) {
    const ModelCost cost(config, testing::kSmallVocabulary);
    const int L = cost.sublayers();
    for (const int cut : {1, 3, 4, L}) {
      const SiteRange before = {0, cut}, after = {cut, L + 1};
      EXPECT_NEAR(cost.linear_maps(before) + cost.linear_maps(after), cost.linear_maps(), 1e-6);
      EXPECT_EQ(cost.between_tokens(64, before) + cost.between_tokens(64, after),
                cost.between_tokens(64));
      EXPECT_NEAR(cost.kept_by_sublayers(before) + cost.kept_by_sublayers(after),
                  cost.kept_by_sublayers(), 1e-6 * cost.kept_by_sublayers());
      EXPECT_NEAR(cost.moved_by_mixer(before) + cost.moved_by_mixer(after), cost.moved_by_mixer(),
                  1e-6 * cost.moved_by_mixer());
      EXPECT_NEAR(cost.kept_until_backward(before, false) + cost.kept_until_backward(after, false),
                  cost.kept_until_backward({}, false), 1e-6 * cost.kept_until_backward({}, false));
      // Recomputed, a cut inside a span leaves what crosses it.
      EXPECT_GE(cost.kept_until_backward(before, true) + cost.kept_until_backward(after, true),
                cost.kept_until_backward({}, true));
      EXPECT_LE(cost.kept_in_backward(before, true), cost.kept_in_backward({}, true));
    }
  }
}

TEST(ModelCost, CountsMapsAtEverySiteThatUsesThem) {
  const auto linear_maps = [](const Json& mixing) {
    return ModelCost(testing::small_config(mixing, 5), testing::kSmallVocabulary).linear_maps();
  };
  const double shared =
      linear_maps({{"type", "depth_attention"}}) - linear_maps(testing::residual());
  EXPECT_EQ(shared, 4 * 5 * 32 * 32);  // maps, and attentions that each of them is used at
}

}  // namespace
}  // namespace attnres::model_cost_test
