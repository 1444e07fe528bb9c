#include "attnres/formats/gguf_layers.h"

#include <gtest/gtest.h>

#include <set>

#include "attnres/model/layer_kind.h"
#include "tests/model/small_models.h"

namespace attnres::testing::gguf_layers_test {
namespace {

// The roles that the sublayer of a site adds, by itself.
std::set<std::string> roles_at(const ModelConfig& config, int site) {
  ParameterRegistry parameters(at::kFloat, /*seed=*/std::nullopt, at::kMeta);
  layer_kind(config, site).make(config, config.layer_place(site, {}), parameters);
  std::set<std::string> roles;
  for (const Parameter& parameter : parameters.all()) roles.insert(parameter.role);
  return roles;
}

TEST(GgufLayers, HaveAPlaceForEveryParameter) {
  using enum GgufArchitecture;
  const std::vector<std::pair<ModelConfig, std::vector<GgufArchitecture>>> models = {
      {small_config(residual()), {llama}},
      {kimi_config(/*k3=*/false, residual()), {kimi_linear, kimi_k3}},
      {kimi_config(/*k3=*/true, residual()), {kimi_k3}},
      {relative_config(residual()), {qwen2, qwen3, smollm3, gemma3}},
      {gpt_oss_config(residual()), {gpt_oss}}};
  std::set<std::string> kinds;
  for (const auto& [config, architectures] : models) {
    for (const GgufArchitecture architecture : architectures) {
      for (int site = 0; site < config.sublayers(); ++site) {
        const std::string& kind = layer_kind(config, site).name;
        std::set<std::string> roles, names;
        for (const GgufPart& part : gguf_layer_parts(config, site, architecture)) {
          roles.insert(part.roles.begin(), part.roles.end());
          EXPECT_TRUE(names.insert(part.name).second) << kind << ": " << part.name;
          EXPECT_TRUE(part.make || part.roles.size() == 1) << part.name;
        }
        EXPECT_EQ(roles, roles_at(config, site)) << kind;
        kinds.insert(kind);
      }
    }
  }
  for (const LayerKind* kind : all_kinds()) EXPECT_TRUE(kinds.contains(kind->name)) << kind->name;
}

}  // namespace
}  // namespace attnres::testing::gguf_layers_test
