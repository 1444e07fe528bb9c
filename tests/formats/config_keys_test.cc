// Keys of a config.json that nobody reads, and the file's names in errors.
#include "attnres/formats/config_keys.h"

#include <gmock/gmock.h>

#include "attnres/formats/model_config_json.h"
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
                ElementsAre(typed + " (" + key + "?)"));
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
