// What a mechanism calls its parameters and what a layer calls its own: whatever the two are, a
// model of both has every parameter by itself, in the registry, in files and in checkpoints.
#include <gmock/gmock.h>

#include <algorithm>
#include <set>

#include "attnres/model/layer_kind.h"
#include "attnres/model/parameter_names.h"
#include "attnres/parameters/mixer_parameters.h"
#include "attnres/support/error.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing::parameter_roles_test {
namespace {

ModelConfig with_experts(const Json& depth_mixing, int64_t dense_layers) {
  return read_model_config({{"layers", 3},
                            {"width", 32},
                            {"heads", 4},
                            {"kv_heads", 2},
                            {"experts",
                             {{"count", 5},
                              {"chosen", 2},
                              {"width", 12},
                              {"dense_layers", dense_layers},
                              {"shared", 1}}},
                            {"depth_mixing", depth_mixing}});
}

// Models that have every kind of layer between them, in every layer some.
std::vector<ModelConfig> models(const Json& depth_mixing) {
  return {small_config(depth_mixing),
          kimi_config(/*k3=*/false, depth_mixing),
          kimi_config(/*k3=*/true, depth_mixing),
          relative_config(depth_mixing),
          gpt_oss_config(depth_mixing),
          with_experts(depth_mixing, /*dense_layers=*/0)};
}

Transformer shapes_of(const ModelConfig& config) {
  return {config, kSmallVocabulary, /*seed=*/std::nullopt, at::kFloat, at::kMeta};
}

// Names of all its parameters in files.
std::vector<std::string> file_names(const Transformer& model) {
  std::vector<std::string> names;
  for (const Parameter& p : model.parameters().all()) {
    for (const StoredTensor& stored : stored_tensors(p, model.sublayers())) {
      names.push_back(stored.name);
    }
  }
  return names;
}

const std::string* repeated(const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second) return &name;
  }
  return nullptr;
}

// Roles of one that is only its mixer, or of a model without one but the plain residual.
std::set<std::pair<int, std::string>> roles(const ParameterRegistry& parameters, bool of_mixer) {
  std::set<std::pair<int, std::string>> roles;
  for (const Parameter& p : parameters.all()) {
    if (is_of_mixer(parameters, p) == of_mixer) roles.emplace(p.site, p.role);
  }
  return roles;
}

class ParameterRoles : public ::testing::TestWithParam<Mixing> {};

TEST_P(ParameterRoles, OfAMechanismClashWithThoseOfNoLayer) {
  int made = 0;
  for (const ModelConfig& config : models(GetParam().json)) {
    std::optional<Transformer> model;
    try {
      model.emplace(shapes_of(config));
    } catch (const UsageError& refused) {  // layers that cannot do what the mechanism asks of them
      EXPECT_THAT(refused.what(), ::testing::HasSubstr("choose another"));
      continue;
    }
    ++made;
    const ParameterRegistry& parameters = model->parameters();
    // The layers' are those of a residual model, by the same roles.
    ModelConfig plain = config;
    plain.depth_mixing = DepthMixing();
    const Transformer residual = shapes_of(plain);
    EXPECT_EQ(roles(parameters, false), roles(residual.parameters(), false));
    // The mixer's are all there too.
    ParameterRegistry alone(at::kFloat, std::nullopt, at::kMeta);
    config.depth_mixing.make_mixer(config.mixer_shape(), alone);
    EXPECT_EQ(roles(parameters, true).size(), alone.all().size());
    for (const Parameter& p : parameters.all()) {
      EXPECT_EQ(parameters.find(p.site, p.role), &p) << p.site << " " << p.role;
    }
    const std::vector<std::string> names = file_names(*model);
    EXPECT_EQ(repeated(names), nullptr) << *repeated(names);
  }
  EXPECT_GE(made, 3);
}

INSTANTIATE_TEST_SUITE_P(EveryVariant, ParameterRoles, ::testing::ValuesIn(every_variant()),
                         [](const auto& info) { return info.param.name; });

// Both call a parameter "gate". What older files of models without experts call it stays.
TEST(ParameterRoles, OfDeepDeltaAndExpertsStandBesideEachOther) {
  const Json deep_delta = {{"type", "deep_delta"}};
  const Transformer model = shapes_of(with_experts(deep_delta, /*dense_layers=*/1));
  const auto shape_of = [&](const std::string& wanted) {
    for (const Parameter& p : model.parameters().all()) {
      if (hugging_face_name(p, model.sublayers()) == wanted) return p.tensor.sizes().vec();
    }
    return std::vector<int64_t>();
  };
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shape_of("model.layers.0.self_attention_depth_mixing.gate"), (Shape{1, 32}));
  EXPECT_EQ(shape_of("model.layers.0.block_sparse_moe.gate.weight"), (Shape{1, 32}));
  EXPECT_EQ(shape_of("model.layers.1.block_sparse_moe.gate.weight"), (Shape{5, 32}));
  EXPECT_EQ(shape_of("model.layers.1.mlp_depth_mixing.gate"), (Shape{1, 32}));
}

TEST(ParameterRoles, OfTwoLayersAtOneSiteAreRefused) {
  ParameterRegistry parameters(at::kFloat, std::nullopt, at::kMeta);
  const auto add = [&] { parameters.add(0, "gate", ParameterKind::matrix, {2, 2}, Init::zeros()); };
  {
    const AddingOfMixer adding(parameters);
    add();
    EXPECT_THROW(add(), Error);
  }
  add();
  EXPECT_THROW(add(), Error);
  EXPECT_EQ(parameters.all().size(), 2u);
  EXPECT_TRUE(is_of_mixer(parameters, *parameters.find(0, "depth_mixing.gate")));
  EXPECT_FALSE(is_of_mixer(parameters, *parameters.find(0, "gate")));
}

}  // namespace
}  // namespace attnres::testing::parameter_roles_test
