// Models with maps of low rank beside theirs.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <map>
#include <set>

#include "attnres/model/merge_low_rank.h"
#include "attnres/model/parameter_names.h"
#include "attnres/support/error.h"
#include "tests/model/kinds_of_models.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::low_rank_test {
namespace {

using ::testing::HasSubstr;

constexpr double kTolerance = 1e-11;

ModelConfig with_lora(ModelConfig config, LoraSettings lora) {
  config.lora = std::move(lora);
  return config;
}

struct Kind {
  std::string name;
  ModelConfig config;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) {
  return out << kind.name;
}

// Maps that read inputs of their own, that are taken apart, and that experts share.
std::vector<Kind> kinds() {
  return {{"dense", small_config(block_attn_res(2))},
          {"own_inputs", small_config({{"type", "muddformer"}})},
          {"kimi_linear", kimi_config(false, residual())},
          {"kimi_k3", kimi_config(true, block_attn_res(4))}};
}

class LowRank : public ::testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, LowRank, ::testing::ValuesIn(kinds()),
                         [](const auto& info) { return info.param.name; });

at::Tensor log_probabilities(const Transformer& model) {
  return model.log_probabilities(random_ids(2, 9), random_ids(2, 9, 6));
}

std::map<std::string, at::Tensor> gradients(const Transformer& model) {
  model.loss(random_ids(2, 7), random_ids(2, 7, 6)).backward();
  std::map<std::string, at::Tensor> result;
  for (const Parameter& p : model.parameters().all()) {
    if (!p.tensor.grad().defined()) continue;
    result[hugging_face_name(p, model.sublayers())] = p.tensor.grad().clone();
    p.tensor.mutable_grad().reset();
  }
  return result;
}

TEST_P(LowRank, ChangesNothingAtFirst) {
  const ModelConfig &plain = GetParam().config, adapted = with_lora(plain, {.rank = 3});
  const Transformer base(plain, kSmallVocabulary, /*seed=*/1, at::kDouble),
      model(adapted, kSmallVocabulary, /*seed=*/1, at::kDouble);
  EXPECT_GT(model.parameters().count(), base.parameters().count());
  EXPECT_TRUE(at::equal(log_probabilities(model), log_probabilities(base)));
}

TEST_P(LowRank, IsTheModelInWhichItIsMerged) {
  const ModelConfig config = with_lora(GetParam().config, {.rank = 3, .alpha = 5});
  const Transformer model = perturbed(Transformer(config, kSmallVocabulary, 1, at::kDouble));
  for (const Parameter& p : model.parameters().all()) {
    if (is_low_rank(p)) add_noise(p, 0.2);
  }
  const std::unique_ptr<Transformer> merged = merge_low_rank(model);
  EXPECT_EQ(merged->config().lora.rank, 0);
  EXPECT_TRUE(close(log_probabilities(model), log_probabilities(*merged), kTolerance));

  const auto of_merged = gradients(*merged), of_model = gradients(model);
  int maps = 0;
  for (const Parameter& p : model.parameters().all()) {
    const std::string name = hugging_face_name(p, model.sublayers());
    if (!p.role.ends_with(kLowRankIn)) {
      if (!is_low_rank(p) && of_merged.contains(name)) {
        EXPECT_TRUE(close(of_model.at(name), of_merged.at(name), kTolerance)) << name;
      }
      continue;
    }
    ++maps;
    // dL/dA = s B^T dL/dW, dL/dB = s dL/dW A^T
    const std::string map = p.role.substr(0, p.role.size() - std::string(kLowRankIn).size());
    const Parameter& b = *model.parameters().find(p.site, map + kLowRankOut);
    const at::Tensor grad =
        of_merged.at(hugging_face_name(*model.parameters().find(p.site, map), model.sublayers()));
    const double scale = 5.0 / 3;
    EXPECT_TRUE(close(of_model.at(name), scale * at::mm(b.tensor.t(), grad).detach(), kTolerance));
    EXPECT_TRUE(close(of_model.at(hugging_face_name(b, model.sublayers())),
                      scale * at::mm(grad, p.tensor.t()).detach(), kTolerance));
  }
  EXPECT_GE(maps, 20);

  // What is beside the maps matters.
  const Transformer without =
      perturbed(Transformer(GetParam().config, kSmallVocabulary, 1, at::kDouble));
  EXPECT_FALSE(close(log_probabilities(without), log_probabilities(*merged), 1e-3));
}

TEST_P(LowRank, DecodesAsItReadsAtOnce) {
  const ModelConfig config = with_lora(GetParam().config, {.rank = 2});
  const Transformer model = perturbed(Transformer(config, kSmallVocabulary, 1, at::kDouble));
  for (const Parameter& p : model.parameters().all()) {
    if (is_low_rank(p)) add_noise(p, 0.2);
  }
  const at::NoGradGuard no_grad;
  const at::Tensor ids = random_ids(1, 9);
  const auto pool = model.make_pool({.tokens = 64});
  const int64_t id = pool->add();
  std::vector<at::Tensor> pieces;
  for (const int64_t count : {4, 1, 1, 3}) {
    const int64_t from = pool->length(id);
    pieces.push_back(model.hidden(ids[0].narrow(0, from, count), pool->append({{id, count}})));
  }
  EXPECT_TRUE(close(at::cat(pieces), model.hidden(ids)[0], kTolerance));
}

std::set<std::string> adapted(const Transformer& model) {
  std::set<std::string> names;
  for (const Parameter& p : model.parameters().all()) {
    if (is_low_rank(p)) names.insert(hugging_face_name(p, model.sublayers()));
  }
  return names;
}

TEST(LowRankMaps, AreBesideTheTargets) {
  const auto names = [](const ModelConfig& config, const std::vector<std::string>& targets) {
    return adapted(Transformer(with_lora(config, {.rank = 2, .targets = targets}), kSmallVocabulary,
                               std::nullopt, at::kFloat, at::kMeta));
  };
  const ModelConfig dense = small_config(residual(), /*layers=*/1);
  const std::string attention = "model.layers.0.self_attn.";
  const std::set<std::string> two = {
      attention + "q_proj.lora_A.weight", attention + "q_proj.lora_B.weight",
      attention + "v_proj.lora_A.weight", attention + "v_proj.lora_B.weight"};
  EXPECT_EQ(names(dense, {"q_proj", "v_proj"}), two);
  EXPECT_EQ(names(dense, {"self_attn.q_proj", "model.layers.0.self_attn.v_proj"}), two);
  EXPECT_EQ(names(dense, {kAllLinear}).size(), 14u);
  const std::string message = message_of<UsageError>([&] {
    names(dense, {"q_proj", "proj", kAllLinear});
  });
  EXPECT_THAT(message, HasSubstr("model.lora.targets: proj is no map"));
  EXPECT_THAT(message, HasSubstr(kAllLinear));
  // Routed experts have none.
  for (const std::string& name : names(kimi_config(true, residual()), {kAllLinear})) {
    EXPECT_EQ(name.find(".experts."), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace attnres::testing::low_rank_test
