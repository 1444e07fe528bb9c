// Model directories of Kimi Linear and Kimi K3. The fixtures were made, and their log-probabilities
// computed, by transformers and mlx-lm (tests/interop/make_fixtures.py).

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "attnres/formats/safetensors.h"
#include "attnres/formats/tensor_files.h"
#include "attnres/layers/experts.h"
#include "attnres/pretrained/model_directory.h"
#include "attnres/pretrained/save_model.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/model/small_models.h"
#include "tests/pretrained/fixture_models.h"
#include "tests/text/test_files.h"
#include "tests/tolerances.h"

namespace attnres::testing::kimi_directory_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(KimiLinearDirectory, ScoresAsTransformersDoes) {
  EXPECT_LT(error_against_fixture(*load_model(fixture("kimi_linear_tiny")), "kimi_linear_tiny"),
            1e-4);
}

TEST(KimiK3Directory, ScoresAsMlxDoes) {
  EXPECT_LT(error_against_fixture(*load_model(fixture("kimi_k3_tiny")), "kimi_k3_tiny"), 5e-4);
}

// Maps of queries, keys and values in one, kv_b_proj in two, experts stacked (mlx_tensors.h).
TEST(KimiK3Directory, ScoresAsMlxThatSavedIt) {
  const std::string name = "kimi_k3_mlx_tiny";
  EXPECT_LT(error_against_fixture(*load_model(fixture(name)), name), 5e-4);
  const auto changed = [&](const char* tensor, const auto& change) {
    const fs::path folder = copy_of(name);
    const SafetensorsFile file(fixture(name) / "model.safetensors");
    std::vector<std::pair<std::string, at::Tensor>> tensors;
    for (const std::string& of : file.names()) {
      tensors.emplace_back(of, of.ends_with(tensor) ? change(file.read(of)) : file.read(of));
    }
    write_safetensors(folder / "model.safetensors", tensors);
    return folder;
  };
  for (const char* tensor : {"qkv_proj.weight", "qkv_conv.conv.weight", "switch_mlp.up_proj.weight",
                             "embed_q.weight", "unembed_out.weight"}) {
    const fs::path turned = changed(tensor, [](const at::Tensor& t) { return t.roll(1, 0); });
    EXPECT_GT(error_against_fixture(*load_model(turned), name), 2e-3) << tensor;
    const fs::path shorter = changed(tensor, [](const at::Tensor& t) { return t.narrow(0, 1, 1); });
    EXPECT_THROW(load_model(shorter), Error) << tensor;
    const fs::path flat = changed(tensor, [](const at::Tensor& t) { return t.flatten(); });
    EXPECT_THROW(load_model(flat), Error) << tensor;
  }
}

TEST(KimiK3Directory, EverySettingMatters) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"rms_norm_eps", 0.1},
                                                 {"hidden_act", "silu"},
                                                 {"activation_situ_beta", 1.0},
                                                 {"attn_res_block_size", 1},
                                                 {"num_experts_per_token", 1},
                                                 {"num_expert_group", 2},
                                                 {"routed_scaling_factor", 1.0}}) {
    const fs::path folder = copy_of("kimi_k3_tiny");
    edit(folder / "config.json",
         [&key = key, &value = value](Json& json) { json["text_config"][key] = value; });
    EXPECT_GT(error_against_fixture(*load_model(folder), "kimi_k3_tiny"), 1e-3) << key;
  }
}

// The log-probabilities that transformers gave with renormalization are the negative control. Of K3
// they hardly tell: the norm behind its experts removes what all of their weights have in common.
TEST(KimiDirectories, SayWhetherExpertsRenormalize) {
  for (const char* name : {"kimi_linear_tiny", "kimi_k3_tiny"}) {
    const fs::path folder = copy_of(name);
    edit(folder / "config.json", [](Json& json) {
      (json.contains("text_config") ? json["text_config"] : json)["moe_renormalize"] = false;
    });
    const auto model = load_model(folder);
    EXPECT_FALSE(model->config().settings<ExpertsSettings>().renormalize);
    if (std::string(name) == "kimi_linear_tiny") {
      EXPECT_GT(error_against_fixture(*model, name), 1e-3);
    }
    const fs::path saved = fresh_folder("saved");
    save_model(*model, saved, /*context=*/64, /*document_ids=*/0);
    Json json = read_json(saved / "config.json");
    if (json.contains("text_config")) json = json["text_config"];
    EXPECT_EQ(json["moe_renormalize"], false);
    EXPECT_EQ(write_config(load_model(saved)->config()), write_config(model->config()));
  }
}

class SavedKimi : public ::testing::TestWithParam<std::pair<bool, Json>> {};

TEST_P(SavedKimi, ComesBackExactly) {
  const auto& [k3, depth_mixing] = GetParam();
  const Transformer model = kimi_model(k3, depth_mixing, at::kFloat);
  const fs::path folder = fresh_folder("saved");
  save_model(model, folder, /*context=*/64, /*document_ids=*/0);
  const bool has_whole_blocks = depth_mixing == residual() || depth_mixing == block_attn_res(4);
  const char* type = k3 && has_whole_blocks              ? "kimi_k3"
                     : !k3 && depth_mixing == residual() ? "kimi_linear"
                                                         : "attnres";
  EXPECT_EQ(read_json(folder / "config.json")["model_type"], type);
  const auto loaded = load_model(folder);
  EXPECT_EQ(write_config(loaded->config()), write_config(model.config()));
  EXPECT_EQ(ModelDirectory(folder).context(), 64);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = random_ids(2, 20);
  EXPECT_TRUE(loaded->hidden(ids).equal(model.hidden(ids)));
}

INSTANTIATE_TEST_SUITE_P(
    Models, SavedKimi,
    ::testing::Values(std::pair{false, residual()}, std::pair{false, block_attn_res(4)},
                      std::pair{true, residual()}, std::pair{true, block_attn_res(4)},
                      std::pair{true, block_attn_res(3)}, std::pair{true, attn_res()}));

TEST(KimiK3Directory, HoldsLatentExpertsWithoutTheirNorm) {
  ModelConfig config = kimi_config(/*k3=*/true, block_attn_res(4));
  config.settings<ExpertsSettings>().latent_norm = false;
  const Transformer model = perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1));
  const fs::path folder = fresh_folder("saved");
  save_model(model, folder, /*context=*/64, /*document_ids=*/0);
  EXPECT_EQ(read_json(folder / "config.json")["text_config"]["latent_moe_use_norm"], false);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = random_ids(2, 20);
  EXPECT_TRUE(load_model(folder)->hidden(ids).equal(model.hidden(ids)));
}

// Which the file does not say, and the model that is read does not need.
// What no site reads: the depth attention of the first, which has one source.
TEST(KimiK3Directory, KeepsWhatItDoesNotUse) {
  const fs::path from = fresh_folder("from");
  const Transformer model(load_model(fixture("kimi_k3_tiny"))->config(), /*vocab_size=*/64,
                          /*seed=*/1, at::kFloat);
  save_model(model, from, /*context=*/64, /*document_ids=*/0);
  const std::string stem = "language_model.model.layers.0.self_attention_res_";
  const SafetensorsFile before(from / "model.safetensors");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  int changed = 0;
  for (const std::string& name : before.names()) {
    const at::Tensor tensor = before.read(name);
    const bool is_unused = name.starts_with(stem);
    if (is_unused) ++changed;
    tensors.emplace_back(
        name, is_unused ? at::arange(tensor.numel()).view(tensor.sizes()).to(at::kFloat) : tensor);
  }
  ASSERT_EQ(changed, 2);
  write_safetensors(from / "model.safetensors", tensors);
  const fs::path out = fresh_folder("out") / "copy";
  save_model_folder_like(out, *load_model(from), ModelDirectory(from), /*context=*/64);
  const SafetensorsFile after(out / "model.safetensors");
  for (const auto& [name, tensor] : tensors)
    EXPECT_TRUE(at::equal(after.read(name), tensor)) << name;
}

TEST(KimiK3Directory, HoldsModelsWhoseQueriesBeganRandom) {
  Json mixing = block_attn_res(4);
  mixing["query_init"] = 0.5;
  const Transformer model(kimi_config(/*k3=*/true, mixing), kSmallVocabulary, /*seed=*/1);
  const fs::path folder = fresh_folder("saved");
  save_model(model, folder, /*context=*/64, /*document_ids=*/0);
  EXPECT_EQ(read_json(folder / "config.json")["model_type"], "kimi_k3");
  const auto loaded = load_model(folder);
  const Transformer zeros(kimi_config(/*k3=*/true, block_attn_res(4)), kSmallVocabulary,
                          /*seed=*/1);
  const at::NoGradGuard no_grad;
  const at::Tensor ids = random_ids(2, 20);
  EXPECT_TRUE(loaded->hidden(ids).equal(model.hidden(ids)));
  EXPECT_FALSE(zeros.hidden(ids).equal(model.hidden(ids)));
}

TEST(TensorFiles, AreShardedWhereTheyAreLarge) {
  const fs::path folder = fresh_folder("sharded");
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (int i = 0; i < 5; ++i) {
    tensors.emplace_back("t" + std::to_string(i), at::full({10}, static_cast<double>(i)));
  }
  write_tensor_files(folder, kWeights, tensors, Numbers::finite, /*shard_bytes=*/100);
  EXPECT_TRUE(fs::exists(folder / "model-00003-of-00003.safetensors"));
  EXPECT_FALSE(fs::exists(folder / "model.safetensors"));
  const TensorFiles weights(folder);
  EXPECT_EQ(weights.names().size(), 5u);
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(weights.read(name).equal(tensor));
  weights.verify(weights.names());
}

// Each spoils the K3 fixture, which is in two shards, and what the message has to say.
class DamagedKimi : public ::testing::Test {
 protected:
  const fs::path folder_ = copy_of("kimi_k3_tiny");
  const fs::path index_ = folder_ / "model.safetensors.index.json";
  static constexpr const char* kFirst = "model-00001-of-00002.safetensors";
  static constexpr const char* kSecond = "model-00002-of-00002.safetensors";

  std::string message() {
    return message_of<Error>([&] { load_model(folder_); });
  }
  void edit_text(const char* key, const Json& value) {
    edit(folder_ / "config.json", [&](Json& json) { json["text_config"][key] = value; });
  }
};

TEST_F(DamagedKimi, MissingShard) {
  fs::remove(folder_ / kSecond);
  EXPECT_THAT(message(), AllOf(HasSubstr("index.json"), HasSubstr(kSecond), HasSubstr("missing")));
}

TEST_F(DamagedKimi, IndexNamesAnAbsentFile) {
  edit(index_, [](Json& json) { json["weight_map"]["extra"] = "model-3.safetensors"; });
  EXPECT_THAT(message(), HasSubstr("model-3.safetensors"));
}

TEST_F(DamagedKimi, IndexLeadsOutOfTheFolder) {
  edit(index_, [](Json& json) { json["weight_map"]["extra"] = "../model.safetensors"; });
  EXPECT_THAT(message(), AllOf(HasSubstr("extra"), HasSubstr("beside it")));
}

TEST_F(DamagedKimi, IndexNamesTheWrongShard) {
  edit(index_, [](Json& json) {
    json["weight_map"]["language_model.model.embed_tokens.weight"] = kSecond;
  });
  EXPECT_THAT(message(), AllOf(HasSubstr("embed_tokens"), HasSubstr(kSecond)));
}

// As other programs, which believe the index.
TEST_F(DamagedKimi, TensorThatIsThereTwice) {
  const SafetensorsFile file(folder_ / kSecond);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.read(name));
  tensors.emplace_back("language_model.model.embed_tokens.weight", at::zeros({2}));
  write_safetensors(folder_ / kSecond, tensors);
  const ModelDirectory directory(folder_);
  EXPECT_EQ(directory.notes().size(), 1U);
  EXPECT_LT(error_against_fixture(*directory.load(), "kimi_k3_tiny"), 5e-4);
}

TEST_F(DamagedKimi, LayersInTwoListsOrInNone) {
  const auto lists = [&](const Json& delta, const Json& full) {
    edit(folder_ / "config.json", [&](Json& json) {
      Json& linear = json["text_config"]["linear_attn_config"];
      linear["kda_layers"] = delta;
      linear["full_attn_layers"] = full;
    });
    return message();
  };
  EXPECT_THAT(lists({1, 2, 4}, {3, 4, 5}), HasSubstr("layer 4 is listed twice"));
  EXPECT_THAT(lists({1, 2}, {3, 5}), HasSubstr("layer 4 is in neither"));
  EXPECT_THAT(lists({0, 1, 2, 4}, {3, 5}), HasSubstr("counted from 1"));
}

TEST_F(DamagedKimi, SettingsThatAreNotComputed) {
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"moe_router_activation_func", "softmax"},
                                                 {"moe_layer_freq", 2},
                                                 {"hidden_act", "gelu"},
                                                 {"mla_use_nope", false},
                                                 {"attention_bias", true},
                                                 {"attn_res_block_size", 0}}) {
    fs::remove_all(folder_);
    copy_of("kimi_k3_tiny");
    edit_text(key, value);
    EXPECT_THAT(message(), AllOf(HasSubstr("config.json"), HasSubstr(key)));
  }
}

TEST_F(DamagedKimi, QuantizedExperts) {
  const SafetensorsFile file(folder_ / kFirst);
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  const std::string name = "language_model.model.layers.1.block_sparse_moe.experts.5.w1.weight";
  for (const std::string& other : file.names()) {
    tensors.emplace_back(other == name ? name + "_packed" : other, file.read(other));
  }
  write_safetensors(folder_ / kFirst, tensors);
  edit(index_, [&](Json& json) {
    json["weight_map"].erase(name);
    json["weight_map"][name + "_packed"] = kFirst;
  });
  EXPECT_THAT(message(), AllOf(HasSubstr("experts.5.w1"), HasSubstr("quantized")));
}

TEST_F(DamagedKimi, AnotherNumberOfExperts) {
  edit_text("num_experts", 7);
  EXPECT_THAT(message(), AllOf(HasSubstr("experts.6.w1"), HasSubstr("missing")));
}

TEST_F(DamagedKimi, UnknownModelType) {
  edit(folder_ / "config.json", [](Json& json) { json["model_type"] = "mamba"; });
  EXPECT_THAT(message(), AllOf(HasSubstr("mamba"), HasSubstr("kimi_k3")));
}

}  // namespace
}  // namespace attnres::testing::kimi_directory_test
