// Model directories of architectures that transformers has. The fixtures were made, and their
// log-probabilities computed, by transformers (tests/interop/make_fixtures.py).

#include "attnres/formats/architectures.h"

#include <ATen/core/grad_mode.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_model.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/experts.h"
#include "attnres/model/retrofit.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/fixture_models.h"

namespace attnres::testing::architectures_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// One, and keys of its config.json each of which changes what it computes.
struct Architecture {
  std::string name;
  std::vector<std::pair<std::string, Json>> matters;
  bool read_only = false;  // it is written as a model of attnres
};

const std::vector<Architecture> kArchitectures = {
    {"llama3", {{"/rope_parameters/rope_type", "linear"}, {"/rope_parameters/factor", 2}}},
    {"mistral", {{"/sliding_window", 8}, {"/sliding_window", nullptr}}},
    {"qwen2",
     {{"/sliding_window", 10},
      {"/layer_types/1", "sliding_attention"},
      {"/layer_types/3", "full_attention"}}},
    {"qwen3",
     {{"/rms_norm_eps", 0.1},
      {"/rope_parameters/factor", 2},
      {"/rope_parameters/original_max_position_embeddings", 16},
      {"/rope_parameters/attention_factor", 1}}},
    {"smollm3", {{"/no_rope_layers/1", 1}, {"/no_rope_layers/2", 0}}},
    {"gemma3",
     {{"/sliding_window", 6},
      {"/query_pre_attn_scalar", 6},
      {"/layer_types/0", "full_attention"},
      {"/rope_parameters/full_attention/factor", 2},
      {"/rope_parameters/sliding_attention/rope_theta", 500}}},
    {"deepseek_v3",
     {{"/n_group", 2},
      {"/topk_group", 1},
      {"/norm_topk_prob", false},
      {"/routed_scaling_factor", 1},
      {"/rope_parameters/mscale_all_dim", 0.8},
      {"/rope_parameters/rope_theta", 50}}},
    {"gpt_oss",
     {{"/sliding_window", 6},
      {"/swiglu_limit", 7},
      {"/num_experts_per_tok", 2},
      {"/layer_types/1", "sliding_attention"}},
     /*read_only=*/true},
    {"mixtral", {{"/sliding_window", 8}, {"/num_experts_per_tok", 1}}, /*read_only=*/true},
    {"qwen3_moe",
     {{"/norm_topk_prob", true}, {"/num_experts_per_tok", 3}, {"/sliding_window", 8}},
     /*read_only=*/true},
};

class Architectures : public ::testing::TestWithParam<Architecture> {
 protected:
  const std::string name_ = GetParam().name + "_tiny";
};

INSTANTIATE_TEST_SUITE_P(Names, Architectures, ::testing::ValuesIn(kArchitectures),
                         [](const auto& info) { return info.param.name; });

TEST_P(Architectures, ScoreAsTransformersDoes) {
  EXPECT_LT(error_against_fixture(*load_model(fixture(name_)), name_), 1e-4);
  for (const auto& [key, value] : GetParam().matters) {
    const fs::path folder = copy_of(name_);
    edit(folder / "config.json",
         [&key = key, &value = value](Json& json) { json[Json::json_pointer(key)] = value; });
    EXPECT_GT(error_against_fixture(*load_model(folder), name_), 1e-3) << key;
  }
}

// As they were given to us, and as this program keeps its own.
TEST_P(Architectures, ComeBackFromTheirFiles) {
  const auto model = load_model(fixture(name_));
  const Json given = read_json(fixture(name_) / "config.json");
  std::vector<FileLayout> layouts = {FileLayout::attnres};
  if (GetParam().read_only) {
    EXPECT_THROW(public_layout(model->config()), Error);
    EXPECT_EQ(layout_of(model->config()), FileLayout::attnres);
  } else {
    layouts.push_back(public_layout(model->config()));
  }
  for (const FileLayout layout : layouts) {
    const fs::path folder = fresh_folder("saved");
    save_model(*model, folder, /*context=*/128,
               ModelDirectory(fixture(name_)).stored().document_ids, at::kFloat, layout);
    const auto again = load_model(folder);
    EXPECT_EQ(write_config(again->config()), write_config(model->config()));
    EXPECT_LT(error_against_fixture(*again, name_), 1e-4);
    if (layout == FileLayout::attnres) continue;
    const Json written = read_json(folder / "config.json");
    const Json rope = given["rope_parameters"].flatten();
    for (const auto& [key, value] : rope.items()) {
      if (key.starts_with("/mscale")) continue;  // one of several ways to say it
      EXPECT_EQ(written["rope_parameters"].flatten().value(key, Json()), value) << key;
    }
    for (const char* key : {"model_type", "architectures", "layer_types", "sliding_window",
                            "no_rope_layers", "query_pre_attn_scalar"}) {
      if (given.contains(key)) {
        EXPECT_EQ(written.value(key, Json()), given[key]) << key;
      }
    }
  }
}

TEST_P(Architectures, AreRetrofittedWithTheSameFunction) {
  const auto model = load_model(fixture(name_));
  const DepthMixing mixing(
      {{"type", "block_attn_res"}, {"block_size", 2}, {"norm_eps", "per_source_count"}},
      model->config().mixer_shape());
  const auto retrofitted = retrofit(*model, mixing);
  EXPECT_LT(error_against_fixture(*retrofitted, name_), 1e-4);
  const fs::path folder = fresh_folder("saved");
  save_model(*retrofitted, folder, /*context=*/128, /*document_ids=*/0);
  EXPECT_EQ(read_json(folder / "config.json")["model_type"], "attnres");
  EXPECT_LT(error_against_fixture(*load_model(folder), name_), 1e-4);
}

// The numbers are what transformers' own reader makes of the blocks. Kept as they are, what they
// are multiplied with is rounded.
TEST(GptOssDirectory, KeepsExpertsInMxfp4) {
  const std::string name = "gpt_oss_mxfp4_tiny";
  const ModelDirectory directory(fixture(name));
  EXPECT_LT(error_against_fixture(*directory.load(), name), 1e-4);
  const auto packed = directory.load(Precision(at::kFloat, at::kFloat, directory.weight_formats()));
  int64_t weights = 0;
  for (const Parameter& parameter : packed->parameters().all()) {
    const bool is_map = parameter.role == "w1" || parameter.role == "w2" || parameter.role == "w3";
    EXPECT_EQ(parameter.packed.defined() && parameter.packed.format == WeightFormat::mxfp4, is_map)
        << parameter.role;
    weights += is_map ? 1 : 0;
  }
  EXPECT_EQ(weights, 6);
  const double error = error_against_fixture(*packed, name);
  EXPECT_GT(error, 1e-4);
  EXPECT_LT(error, 0.1);
}

// Runs are resumed from what they saved: no bit of a gain may be lost to its place less 1.
TEST(GemmaDirectory, IsSavedWithEveryBit) {
  ModelConfig config = load_model(fixture("gemma3_tiny"))->config();
  const Transformer model = perturbed(Transformer(config, 40, /*seed=*/1));
  const at::NoGradGuard no_grad;
  for (const Parameter& p : model.parameters().all()) {
    if (p.kind == ParameterKind::norm_gain) p.tensor.mul_(0.01);
  }
  const at::Tensor ids = random_ids(1, 20, 3, 40);
  const auto same_after = [&](FileLayout layout) {
    const fs::path folder = fresh_folder("saved");
    save_model(model, folder, 128, 0, at::kFloat, layout);
    return load_model(folder)->hidden(ids).equal(model.hidden(ids));
  };
  EXPECT_EQ(layout_of(config), FileLayout::attnres);
  EXPECT_TRUE(same_after(layout_of(config)));
  EXPECT_FALSE(same_after(FileLayout::gemma3));  // which is why
}

// What transformers 4 wrote, and files that leave out what their class says.
TEST(FilesOfOlderReleases, AreTheSameModels) {
  const auto same = [](const std::string& name, const std::function<void(Json&)>& change) {
    const fs::path folder = copy_of(name);
    edit(folder / "config.json", change);
    EXPECT_LT(error_against_fixture(*load_model(folder), name), 1e-4) << name;
  };
  same("gemma3_tiny", [](Json& json) {
    json.erase("rope_parameters");
    json.erase("layer_types");
    json.update(Json{{"rope_theta", 500.0},
                     {"rope_local_base_freq", 20.0},
                     {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}},
                     {"sliding_window_pattern", 3}});
  });
  same("gemma3_tiny", [](Json& json) {
    Json text = json;
    json = {{"model_type", "gemma3"}, {"text_config", text}};
  });
  same("qwen2_tiny", [](Json& json) {
    json.erase("layer_types");
    json.erase("rope_parameters");
    json.update(Json{{"rope_theta", 500.0}, {"max_window_layers", 2}});
  });
  same("qwen3_tiny", [](Json& json) {
    json["rope_theta"] = 500.0;
    json["rope_scaling"] = {{"type", "yarn"}, {"factor", 4}};
    json["rope_scaling"]["original_max_position_embeddings"] = 32;
    json.erase("rope_parameters");
  });
  same("deepseek_v3_tiny", [](Json& json) { json["model_type"] = "kimi_k2"; });
  same("smollm3_tiny", [](Json& json) {
    json.erase("no_rope_layers");
    json["no_rope_layer_interval"] = 2;
  });
}

// Where transformers takes the context that was trained first from: beside the parameters, in them,
// or the model's own.
TEST(RotaryPositions, AreOfTheContextThatTransformersTakes) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  const auto error = [](const std::string& name, const std::function<void(Json&)>& change) {
    const fs::path folder = copy_of(name);
    edit(folder / "config.json", change);
    return error_against_fixture(*load_model(folder), name);
  };
  for (const char* name : {"llama3_tiny", "qwen3_tiny", "deepseek_v3_tiny"}) {
    const Json json = read_json(fixture(name) / "config.json");
    const Json right = json["rope_parameters"][kOriginal], wrong = 1000 * right.get<int64_t>();
    EXPECT_GT(error(name, [&](Json& json) { json["rope_parameters"][kOriginal] = wrong; }), 1e-3);
    EXPECT_LT(error(name,
                    [&](Json& json) {
                      json["rope_parameters"][kOriginal] = wrong;
                      json[kOriginal] = right;
                    }),
              1e-4);
    EXPECT_LT(error(name,
                    [&](Json& json) {
                      json["rope_parameters"].erase(kOriginal);
                      json["max_position_embeddings"] = right;
                    }),
              1e-4);
    // Older files' scaling counts before rope_parameters, but not an empty one.
    EXPECT_LT(error(name,
                    [&](Json& json) {
                      json["rope_scaling"] = json["rope_parameters"];
                      json["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3.0}};
                    }),
              1e-4);
    EXPECT_LT(error(name, [](Json& json) { json["rope_scaling"] = Json::object(); }), 1e-4);
  }
  // Without an original context it is no matter.
  EXPECT_LT(error("gemma3_tiny", [](Json& json) { json[kOriginal] = 7; }), 1e-4);
  EXPECT_LT(error("qwen2_tiny", [](Json& json) { json[kOriginal] = 7; }), 1e-4);
}

// There are layers in a window and others; theta stands beside them where it is not in them.
TEST(RotaryPositions, OfGemmaAreOfEachKindOfLayers) {
  const auto error = [](const std::function<void(Json&)>& change) {
    const fs::path folder = copy_of("gemma3_tiny");
    edit(folder / "config.json", change);
    return error_against_fixture(*load_model(folder), "gemma3_tiny");
  };
  EXPECT_LT(error([](Json& json) {
              json["rope_parameters"]["full_attention"].erase("rope_theta");
              json["rope_parameters"].erase("sliding_attention");
              json.update(Json{{"rope_theta", 500.0}, {"rope_local_base_freq", 20.0}});
            }),
            1e-4);
  EXPECT_LT(error([](Json& json) {
              json["rope_parameters"]["full_attention"] = {{"rope_theta", 500.0}};
              json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
            }),
            1e-4);
}

TEST(ArchitecturesThatAreNotComputed, AreRefusedByName) {
  const auto message = [](const std::string& name, const std::string& key, const Json& value) {
    const fs::path folder = copy_of(name);
    edit(folder / "config.json", [&](Json& json) { json[Json::json_pointer(key)] = value; });
    return message_of<Error>([&] { load_model(folder); });
  };
  EXPECT_THAT(message("qwen3_tiny", "/rope_parameters/rope_type", "longrope"),
              HasSubstr("rope_parameters: rope_type longrope: attnres computes default, linear, "
                        "llama3 and yarn"));
  EXPECT_THAT(message("qwen3_tiny", "/attention_bias", true),
              HasSubstr("attention_bias is true, but attnres computes only false"));
  EXPECT_THAT(message("qwen2_tiny", "/layer_types/0", "chunked_attention"),
              HasSubstr("full_attention and sliding_attention, not chunked_attention"));
  EXPECT_THAT(message("qwen2_tiny", "/use_sliding_window", false),
              HasSubstr("use_sliding_window is false or there is no window"));
  for (const char* name : {"qwen2_tiny", "gemma3_tiny", "deepseek_v3_tiny"}) {
    EXPECT_THAT(message(name, "/num_hidden_layers", int64_t{1} << 40),
                HasSubstr("num_hidden_layers: expected 1 to 100000"));
  }
  EXPECT_THAT(message("qwen2_tiny", "/num_hidden_layers", 3),
              HasSubstr("layer_types has 4 entries, but there are 3 layers"));
  EXPECT_THAT(message("gemma3_tiny", "/final_logit_softcapping", 30.0),
              HasSubstr("final_logit_softcapping: attnres does not compute it"));
  const fs::path both = copy_of("smollm3_tiny");
  edit(both / "config.json", [](Json& json) {
    json["layer_types"][1] = "sliding_attention";
    json["use_sliding_window"] = true;
    json["sliding_window"] = 9;
  });
  EXPECT_THAT(message_of<Error>([&] { load_model(both); }),
              HasSubstr("layer 1 has a sliding window and no rotary positions"));
  EXPECT_THAT(message("mistral_tiny", "/sliding_window", 0), HasSubstr("window"));
  EXPECT_THAT(message("llama3_tiny", "/rope_parameters/partial_rotary_factor", 0.5),
              HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(message("llama3_tiny", "/rope_parameters",
                      {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}}}}),
              HasSubstr("positions of each kind of layers only of gemma3_text"));
  EXPECT_THAT(message("gemma3_tiny", "/rope_parameters", {{"rope_type", "default"}}),
              HasSubstr("expected those of full_attention and sliding_attention"));
  EXPECT_THAT(message("qwen3_tiny", "/rope_parameters/attention_factor", 0),
              HasSubstr("attention_factor: expected more than 0"));
}

// Parts that no architecture has together are told apart from those that one has.
TEST(PublicLayouts, AreThoseOfTheFamily) {
  ModelConfig config = load_model(fixture("qwen3_tiny"))->config();
  EXPECT_EQ(public_layout(config), FileLayout::llama);
  config.settings<GroupedQuerySettings>().qkv_bias = true;
  EXPECT_EQ(layout_of(config), FileLayout::attnres);
  EXPECT_THAT(message_of<Error>([&] { public_layout(config); }),
              HasSubstr("model.grouped_query.qkv_bias is true, but Qwen 3, which has qk_norm, has "
                        "false"));
  config = load_model(fixture("gemma3_tiny"))->config();
  config.embedding_scale = 3;
  EXPECT_EQ(layout_of(config), FileLayout::attnres);
  EXPECT_THROW(public_layout(config), Error);
}

// What gpt-oss has, in models of other architectures: none of their files says it.
TEST(PublicLayouts, AreThoseOfModelsWithoutFurtherParts) {
  using Change = std::function<void(ModelConfig&)>;
  const std::vector<Change> of_heads = {
      [](ModelConfig& config) { config.settings<GroupedQuerySettings>().sinks = true; },
      [](ModelConfig& config) { config.settings<GroupedQuerySettings>().output_bias = true; }};
  const std::vector<Change> of_experts = {
      [](ModelConfig& config) { config.settings<ExpertsSettings>().scores = "softmax"; },
      [](ModelConfig& config) { config.settings<ExpertsSettings>().router_bias = true; },
      [](ModelConfig& config) { config.settings<ExpertsSettings>().bias = true; }};
  for (const char* name : {"llama_tiny", "qwen2_tiny", "gemma3_tiny", "deepseek_v3_tiny",
                           "kimi_linear_tiny", "kimi_k3_tiny"}) {
    const ModelConfig plain = load_model(fixture(name))->config();
    EXPECT_NE(public_layout(plain), FileLayout::attnres) << name;
    std::vector<Change> changes = plain.has_grouped_query() ? of_heads : of_experts;
    changes.emplace_back([](ModelConfig& config) { config.activation.type = "swiglu_oai"; });
    for (const Change& change : changes) {
      ModelConfig changed = plain;
      change(changed);
      EXPECT_EQ(layout_of(changed), FileLayout::attnres) << name;
      EXPECT_THROW(public_layout(changed), Error) << name;
      EXPECT_THROW(gguf_architecture(changed), Error) << name;
    }
  }
}

}  // namespace
}  // namespace attnres::testing::architectures_test
