// Keys of a config.json that nobody reads, and the file's names in errors.
#include "attnres/formats/config_keys.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <tuple>

#include "attnres/formats/model_config_json.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::config_keys_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr const char* kModels[] = {
    "llama_tiny",   "llama3_tiny", "mistral_tiny",     "qwen2_tiny",       "qwen3_tiny",
    "smollm3_tiny", "gemma3_tiny", "deepseek_v3_tiny", "kimi_linear_tiny", "kimi_k3_tiny"};

Json config_of(const std::string& model) {
  return read_json(std::filesystem::path(ATTNRES_SOURCE_DIR) / "tests/fixtures" / model /
                   "config.json");
}

// What transformers 5.24 and published files have beside what is read.
TEST(ConfigKeys, LetOthersKeysBe) {
  const Json more = {{"_name_or_path", "a/b"},
                     {"attention_dropout", 0.0},
                     {"chunk_size_feed_forward", 0},
                     {"id2label", Json::object()},
                     {"is_encoder_decoder", false},
                     {"label2id", Json::object()},
                     {"output_attentions", false},
                     {"output_hidden_states", false},
                     {"output_router_logits", false},
                     {"pad_token_id", nullptr},
                     {"pretraining_tp", 1},
                     {"problem_type", nullptr},
                     {"return_dict", true},
                     {"transformers_version", "5.24.0"},
                     {"use_cache", true},
                     {"num_nextn_predict_layers", 1},
                     {"qk_head_dim", 10},
                     {"aux_loss_alpha", 0.001},
                     {"seq_aux", true},
                     {"ep_size", 1},
                     {"torch_dtype", "float32"},
                     {"auto_map", Json::object()},
                     {"cache_implementation", "hybrid"},
                     {"unsloth_version", "1"},
                     {"max_window_layers", 28},
                     {"use_mrope", false},
                     {"rope_theta", 10000.0},
                     {"sep_token_id", nullptr},
                     {"decoder_start_token_id", nullptr},
                     {"hidden_dropout", 0.0},
                     {"resid_pdrop", 0.0},
                     {"embd_pdrop", 0.0},
                     {"rotary_dim", 4},
                     {"layer_norm_eps", 1e-5},
                     {"tokenizer_class", "LlamaTokenizer"},
                     {"neftune_noise_alpha", 1},
                     {"attn_implementation", "sdpa"},
                     {"vision_config", Json::object()}};
  for (const char* model : kModels) {
    const Json plain = config_of(model);
    EXPECT_THAT(from_config_json(plain, model).misspelled, IsEmpty()) << model;
    Json filled = plain;
    for (const auto& [key, value] : more.items()) {
      if (!filled.contains(key)) filled[key] = value;
    }
    for (const char* key : {"bos_token_id", "eos_token_id"}) filled.erase(key);
    EXPECT_THAT(from_config_json(filled, model).misspelled, IsEmpty()) << model;
  }
}

TEST(ConfigKeys, NameWhatLooksMisspelled) {
  const std::vector<std::pair<std::string, std::string>> given = {
      {"rms_norm_eps", "rms_eps"},
      {"rms_norm_eps", "rms_norm_epsilon"},
      {"num_key_value_heads", "num_key_value_head"},
      {"tie_word_embeddings", "tie_embeddings"},
      {"head_dim", "heads_dim"}};
  for (const auto& [key, typed] : given) {
    Json config = config_of("llama3_tiny");
    ASSERT_TRUE(config.contains(key)) << key;
    // A value that changes nothing else of what is checked.
    config[typed] = config[key];
    config.erase(key);
    config["tie_word_embeddings"] = true;
    if (key == "tie_word_embeddings") config.erase(key);
    EXPECT_THAT(from_config_json(config, "config.json").misspelled,
                ElementsAre(fmt::format("{} ({}?)", typed, key)));
  }
}

TEST(ConfigKeys, AreTheFilesOwnInErrors) {
  const auto refusal = [](const std::string& model, const std::string& key, const Json& value) {
    Json config = config_of(model);
    config[key] = value;
    return message_of<Error>([&] { from_config_json(config, "config.json"); });
  };
  EXPECT_THAT(
      refusal("llama3_tiny", "num_attention_heads", 0),
      AllOf(HasSubstr("config.json: num_attention_heads: expected"), Not(HasSubstr("as a"))));
  EXPECT_THAT(refusal("llama3_tiny", "num_key_value_heads", 3),
              HasSubstr("config.json: num_key_value_heads: 4 heads are not divisible by 3"));
  EXPECT_THAT(refusal("llama3_tiny", "hidden_size", -2), HasSubstr("hidden_size: expected"));
  EXPECT_THAT(refusal("llama3_tiny", "rms_norm_eps", -1), HasSubstr("rms_norm_eps: expected"));
  EXPECT_THAT(refusal("llama3_tiny", "head_dim", 7), HasSubstr("config.json: head_dim: rotary"));
  EXPECT_THAT(refusal("mistral_tiny", "sliding_window", -4), HasSubstr("sliding_window: expected"));
  EXPECT_THAT(refusal("deepseek_v3_tiny", "n_routed_experts", -1),
              HasSubstr("config.json: n_routed_experts: expected"));
  EXPECT_THAT(refusal("deepseek_v3_tiny", "kv_lora_rank", -1), HasSubstr("kv_lora_rank: expected"));
  EXPECT_THAT(refusal("kimi_linear_tiny", "num_experts_per_token", 0),
              HasSubstr("config.json: num_experts_per_token: expected"));
}

Json& text_of(Json& config) {
  return config.contains("text_config") ? config["text_config"] : config;
}

std::string refusal_of(const std::string& model, const std::string& key, const Json& value) {
  Json config = config_of(model);
  text_of(config)[Json::json_pointer(key)] = value;
  return message_of<Error>([&] { from_config_json(config, "config.json"); });
}

TEST(ConfigKeys, RefuseNumbersThatNobodyMeans) {
  std::vector<std::string> models(std::begin(kModels), std::end(kModels));
  models.insert(models.end(), {"gpt_oss_tiny", "mixtral_tiny", "qwen3_moe_tiny"});
  for (const std::string& model : models) {
    for (const double eps : {1e30, 1.5, 1e-40, 0.0, -1e-6}) {
      EXPECT_THAT(refusal_of(model, "/rms_norm_eps", eps),
                  HasSubstr("rms_norm_eps: expected 1e-30 to 1, got "))
          << model;
    }
    Json config = config_of(model);
    text_of(config)["rms_norm_eps"] = 1;
    EXPECT_EQ(from_config_json(config, "config.json").model.norm_eps, 1) << model;
  }
  const char* theta = "config.json: rope_theta: expected above 1 and at most 1000000000000, got ";
  for (const double given : {1e30, 1.0, 0.0, -500.0}) {
    EXPECT_THAT(refusal_of("llama3_tiny", "/rope_parameters/rope_theta", given), HasSubstr(theta));
    EXPECT_THAT(refusal_of("gemma3_tiny", "/rope_parameters/full_attention/rope_theta", given),
                HasSubstr(theta));
  }
  for (const auto& [model, key, value, message] :
       {std::tuple("gemma3_tiny", "/rope_parameters/sliding_attention/rope_theta", 1e30,
                   "rope_theta of layers in a window: expected 0 to"),
        {"gemma3_tiny", "/rope_parameters/sliding_attention/rope_theta", -1.0,
         "rope_theta of layers in a window: expected more than 0, got -1"},
        {"gemma3_tiny", "/query_pre_attn_scalar", 1e30, "query_pre_attn_scalar: expected 1 to"},
        {"gemma3_tiny", "/query_pre_attn_scalar", 0.0, "query_pre_attn_scalar: expected 1 to"},
        {"llama3_tiny", "/rope_parameters/factor", 1e30, "rope_parameters.factor: expected 1 to"},
        {"llama3_tiny", "/rope_parameters/factor", -4.0, "rope_parameters.factor: expected 1 to"},
        {"llama3_tiny", "/rope_parameters/high_freq_factor", 1e30, "high_freq_factor: expected"},
        {"llama3_tiny", "/initializer_range", -1.0, "initializer_range: expected 0 to"},
        {"qwen3_tiny", "/rope_parameters/attention_factor", 1e30, "attention_factor: expected 0"},
        {"qwen3_tiny", "/rope_parameters/beta_fast", 1e30, "beta_fast: expected above 0"},
        {"gpt_oss_tiny", "/swiglu_limit", 1e30, "swiglu_limit: expected above 0"},
        {"deepseek_v3_tiny", "/rope_parameters/factor", -4.0,
         "rope_parameters.factor: expected 1 to"},
        {"deepseek_v3_tiny", "/rope_parameters/mscale_all_dim", -1.0,
         "mscale_all_dim: expected 0 or more"},
        {"deepseek_v3_tiny", "/routed_scaling_factor", 1e30, "routed_scaling_factor: expected ab"},
        {"deepseek_v3_tiny", "/routed_scaling_factor", -1.0, "routed_scaling_factor: expected ab"},
        {"kimi_k3_tiny", "/activation_situ_beta", 1e30, "activation_situ_beta: expected above 0"},
        {"kimi_k3_tiny", "/linear_attn_config/gate_lower_bound", -1e30,
         "linear_attn_config.gate_lower_bound: expected -1000000 to 0"}}) {
    EXPECT_THAT(refusal_of(model, key, value), HasSubstr(message)) << model;
  }
}

// Where a recipe's 0 stands for a default, a file's is none: programs that read it divide by it, or
// have a layer of no numbers.
TEST(ConfigKeys, TakeNoZeroForADefault) {
  const std::vector<std::string> heads = {"num_key_value_heads", "head_dim", "intermediate_size"};
  const std::vector<std::string> latent = {
      "intermediate_size", "kv_lora_rank",          "qk_nope_head_dim", "qk_rope_head_dim",
      "v_head_dim",        "moe_intermediate_size", "q_lora_rank"};
  std::vector<std::pair<std::string, std::string>> all = {
      {"qwen3_moe_tiny", "num_experts"},
      {"qwen3_moe_tiny", "num_experts_per_tok"},
      {"qwen3_moe_tiny", "moe_intermediate_size"},
      {"mixtral_tiny", "num_local_experts"},
      {"deepseek_v3_tiny", "n_routed_experts"},
      {"kimi_linear_tiny", "num_experts"},
      {"kimi_k3_tiny", "routed_expert_hidden_size"},
      {"kimi_k3_tiny", "linear_attn_config/num_heads"},
      {"kimi_k3_tiny", "linear_attn_config/head_dim"}};
  for (const char* model : {"llama3_tiny", "gemma3_tiny", "gpt_oss_tiny", "smollm3_tiny"}) {
    for (const std::string& key : heads) all.emplace_back(model, key);
  }
  for (const char* model : {"deepseek_v3_tiny", "kimi_linear_tiny", "kimi_k3_tiny"}) {
    for (const std::string& key : latent) all.emplace_back(model, key);
  }
  for (const auto& [model, key] : all) {
    EXPECT_THAT(refusal_of(model, "/" + key, 0),
                HasSubstr(key.substr(key.find('/') + 1) + ": expected 1 or more, got 0"))
        << model;
  }
  for (const auto& [model, list, key] :
       {std::tuple("gemma3_tiny", "layer_types", "sliding_window_pattern"),
        {"smollm3_tiny", "no_rope_layers", "no_rope_layer_interval"}}) {
    Json config = config_of(model);
    config.erase(list);
    config[key] = 2;
    EXPECT_NO_THROW(from_config_json(config, "config.json")) << key;
    config[key] = 0;
    EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
                HasSubstr(std::string(key) + ": expected 1 or more, got 0"));
  }
  EXPECT_THAT(refusal_of("gemma3_tiny", "/rope_parameters/sliding_attention/rope_theta", 0),
              HasSubstr("rope_theta of layers in a window: expected more than 0, got 0"));
}

// Left out they are what transformers takes.
TEST(ConfigKeys, MayLeaveOutWhatHasADefault) {
  for (const bool is_null : {false, true}) {
    const auto without = [&](const std::string& model, const char* key) {
      Json config = config_of(model);
      config.erase(key);
      if (is_null) config[key] = nullptr;
      return from_config_json(config, "config.json").model;
    };
    EXPECT_EQ(without("llama3_tiny", "num_key_value_heads").kv_heads,
              config_of("llama3_tiny")["num_attention_heads"]);
    EXPECT_EQ(without("deepseek_v3_tiny", "q_lora_rank").settings<LatentAttentionSettings>().q_rank,
              0);
    EXPECT_FALSE(without("kimi_linear_tiny", "num_experts").has_experts(3));
  }
}

TEST(ConfigKeys, OfExpertsAreTheFilesOwnInErrors) {
  EXPECT_THAT(refusal_of("mixtral_tiny", "/num_local_experts", int64_t{1} << 40),
              HasSubstr("config.json: num_local_experts: expected"));
  EXPECT_THAT(refusal_of("mixtral_tiny", "/num_experts_per_tok", 6),
              HasSubstr("config.json: num_experts_per_tok: 6 cannot be chosen of 5 experts"));
  EXPECT_THAT(refusal_of("qwen3_moe_tiny", "/num_experts", int64_t{1} << 40),
              HasSubstr("config.json: num_experts: expected"));
  EXPECT_THAT(refusal_of("deepseek_v3_tiny", "/num_experts_per_tok", 1000),
              HasSubstr("config.json: num_experts_per_tok: 1000 cannot be chosen"));
  EXPECT_THAT(refusal_of("kimi_linear_tiny", "/num_experts_per_token", 1000),
              HasSubstr("config.json: num_experts_per_token: 1000 cannot be chosen"));
  // Kinds of layers, in either form.
  const Json kinds = config_of("kimi_linear_tiny")["layer_types"];
  EXPECT_THAT(refusal_of("kimi_linear_tiny", "/layer_types",
                         std::vector<std::string>(kinds.size(), "linear_attention")),
              HasSubstr("config.json: layer_types: this model has no latent attention"));
  Json k3 = config_of("kimi_k3_tiny");
  Json lists = text_of(k3)["linear_attn_config"];
  for (const Json& layer : lists["full_attn_layers"]) lists["kda_layers"].push_back(layer);
  lists["full_attn_layers"] = Json::array();
  EXPECT_THAT(refusal_of("kimi_k3_tiny", "/linear_attn_config", lists),
              HasSubstr("linear_attn_config.full_attn_layers: this model has no latent attention"));
  EXPECT_THAT(refusal_of("kimi_linear_tiny", "/linear_conv_kernel_dim", 0),
              HasSubstr("config.json: linear_conv_kernel_dim: expected a whole number from 1"));
  EXPECT_THAT(refusal_of("qwen3_tiny", "/rope_parameters/original_max_position_embeddings", 0),
              HasSubstr("original_max_position_embeddings: expected the context"));
}

TEST(ConfigKeys, OfDepthMixingAreTheFilesOwnInErrors) {
  Json config = read_json(ATTNRES_SOURCE_DIR "/models/tiny-shakespeare/config.json");
  config["attnres"]["depth_mixing"]["block_size"] = 99;
  EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
              HasSubstr("config.json: attnres.depth_mixing.block_size: expected 1 to"));
}

// Their products size memory: none may be so large that one overflows.
TEST(ConfigKeys, BoundEverySize) {
  constexpr const char* kSizes[] = {"hidden_size",
                                    "intermediate_size",
                                    "num_hidden_layers",
                                    "num_attention_heads",
                                    "vocab_size",
                                    "max_position_embeddings",
                                    "model_max_length",
                                    "kv_lora_rank",
                                    "q_lora_rank",
                                    "qk_nope_head_dim",
                                    "qk_rope_head_dim",
                                    "v_head_dim",
                                    "n_routed_experts",
                                    "num_experts",
                                    "moe_intermediate_size",
                                    "num_experts_per_token",
                                    "num_nextn_predict_layers"};
  for (const char* model : kModels) {
    const Json plain = config_of(model);
    const bool is_nested = plain.contains("text_config");
    const Json& text = is_nested ? plain["text_config"] : plain;
    for (const std::string size : kSizes) {
      if (!text.contains(size) || !text[size].is_number()) continue;
      for (const int power : {40, 62}) {
        Json config = plain;
        (is_nested ? config["text_config"] : config)[size] = int64_t{1} << power;
        EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
                    AllOf(HasSubstr("config.json"), HasSubstr(size + ": expected")))
            << model;
      }
    }
  }
}

TEST(ConfigKeys, TakeTheLargestContextOfARecipe) {
  Json config = config_of("llama3_tiny");
  config["max_position_embeddings"] = kMostContext;
  EXPECT_EQ(from_config_json(config, "config.json").context, kMostContext);
  config["max_position_embeddings"] = kMostContext + 1;
  EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
              HasSubstr("max_position_embeddings: expected 2 to 16777216, got 16777217"));
}

TEST(ConfigKeys, NameTheNearestModelType) {
  Json config = config_of("llama3_tiny");
  config["model_type"] = "qwen4";
  EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
              AllOf(HasSubstr("model_type qwen4 is unknown"), HasSubstr("did you mean qwen")));
  config["model_type"] = "phi3";
  EXPECT_THAT(message_of<Error>([&] { from_config_json(config, "config.json"); }),
              Not(HasSubstr("did you mean")));
}

}  // namespace
}  // namespace attnres::config_keys_test
