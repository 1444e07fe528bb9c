#include "attnres/model/layer_kind.h"

#include <gtest/gtest.h>

#include <set>

#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/feed_forward.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/model/parameter_names.h"
#include "tests/model/small_models.h"

namespace attnres::testing::layer_kind_test {
namespace {

// Every kind, with and without what its settings may add.
std::vector<ModelConfig> models() {
  return {small_config(residual()), kimi_config(/*k3=*/false, residual()),
          kimi_config(/*k3=*/true, residual()), relative_config(residual()),
          gpt_oss_config(residual())};
}

// The roles that the sublayer of a site adds, by itself.
std::set<std::string> roles_at(const ModelConfig& config, int site) {
  ParameterRegistry parameters(at::kFloat, /*seed=*/std::nullopt, at::kMeta);
  layer_kind(config, site).make(config, config.layer_place(site, {}), parameters);
  std::set<std::string> roles;
  for (const Parameter& parameter : parameters.all()) roles.insert(parameter.role);
  return roles;
}

// By kind, over all models.
std::map<std::string, std::set<std::string>> roles_of_kinds() {
  std::map<std::string, std::set<std::string>> roles;
  for (const ModelConfig& config : models()) {
    for (int site = 0; site < config.sublayers(); ++site) {
      roles[layer_kind(config, site).name].merge(roles_at(config, site));
    }
  }
  return roles;
}

std::set<std::string> named_roles(const LayerKind& kind) {
  std::set<std::string> roles;
  for (const auto& [role, name] : kind.hugging_face) roles.insert(role);
  return roles;
}

TEST(LayerKinds, NameTheParametersThatTheirLayersHave) {
  const auto roles = roles_of_kinds();
  for (const LayerKind* kind : all_kinds()) {
    EXPECT_EQ(named_roles(*kind), roles.at(kind->name)) << kind->name;
  }
  // Control: they are not all alike.
  EXPECT_NE(roles.at(kDelta), roles.at(kLatent));
  EXPECT_NE(roles.at(kDense), roles.at(kExperts));
}

// Files do not say which kind a layer is: its role alone finds a parameter's name.
TEST(LayerKinds, GiveARoleOneName) {
  for (const auto* kinds : {&attention_kinds(), &feed_forward_kinds()}) {
    HuggingFaceNames all;
    for (const LayerKind& kind : *kinds) {
      std::set<std::string> names;
      for (const auto& [role, name] : kind.hugging_face) {
        EXPECT_EQ(all.try_emplace(role, name).first->second, name) << kind.name << " " << role;
        EXPECT_TRUE(names.insert(name).second) << kind.name << ": two roles are " << name;
      }
    }
  }
}

TEST(LayerKinds, AreCalledInFilesAsOthersCallThem) {
  Parameter parameter;
  const auto name = [&](int site, const char* role, int64_t expert = 0) {
    parameter.site = site;
    parameter.role = role;
    return hugging_face_name(parameter, /*sublayers=*/8, expert);
  };
  EXPECT_EQ(name(4, "q_proj"), "model.layers.2.self_attn.q_proj.weight");
  EXPECT_EQ(name(4, "A_log"), "model.layers.2.self_attn.A_log");
  EXPECT_EQ(name(6, "kv_a_layernorm"), "model.layers.3.self_attn.kv_a_layernorm.weight");
  EXPECT_EQ(name(5, "down_proj"), "model.layers.2.mlp.down_proj.weight");
  EXPECT_EQ(name(5, "w2", 11), "model.layers.2.block_sparse_moe.experts.11.w2.weight");
  EXPECT_EQ(name(5, "shared_w2"),
            "model.layers.2.block_sparse_moe.shared_experts.down_proj.weight");
  EXPECT_EQ(name(5, "input_norm"), "model.layers.2.post_attention_layernorm.weight");
  // Roles of the other half, and of nobody.
  EXPECT_EQ(name(5, "q_proj"), "model.layers.2.mlp_depth_mixing.q_proj");
  EXPECT_EQ(name(4, "alpha"), "model.layers.2.self_attention_depth_mixing.alpha");
}

TEST(LayerKinds, AreInTheModelsThatHaveThem) {
  const auto in = [](const ModelConfig& config) {
    std::set<std::string> names;
    for (const LayerKind* kind : all_kinds()) {
      if (kind->is_in(config)) names.insert(kind->name);
    }
    return names;
  };
  EXPECT_EQ(in(small_config(residual())), (std::set<std::string>{kGroupedQuery, kDense}));
  ModelConfig kimi = kimi_config(/*k3=*/false, residual());
  EXPECT_EQ(in(kimi), (std::set<std::string>{kDelta, kLatent, kDense, kExperts}));
  kimi.settings<ExpertsSettings>().dense_layers = 0;
  EXPECT_EQ(in(kimi), (std::set<std::string>{kDelta, kLatent, kExperts}));
}

}  // namespace
}  // namespace attnres::testing::layer_kind_test
