// What is not written as GGUF, since llama.cpp does not compute it, and what is not read.

#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <nlohmann/json.hpp>
#include <tuple>

#include "attnres/layers/experts.h"
#include "attnres/support/error.h"
#include "tests/formats/changed_gguf.h"
#include "tests/formats/gguf_models.h"

namespace attnres::testing::gguf_refusal_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(const fs::path& path, const std::function<void(GgufContents&)>& change) {
  const fs::path file = changed_gguf(path, change);
  const std::string message = message_of<Error>([&] { loaded_gguf(file); });
  EXPECT_THAT(message, HasSubstr("changed.gguf: "));
  return message;
}

TEST(GgufRefusals, RefuseWhatItDoesNotCompute) {
  const fs::path llama = saved_gguf(perturbed_model(gguf_llama()));
  const auto with_key = [&](const std::string& key, const GgufValue& value) {
    return refusal(llama, [&](GgufContents& contents) { contents.key(key) = value; });
  };
  const auto without_key = [&](const std::string& key) {
    return refusal(llama, [&](GgufContents& contents) { contents.erase_key(key); });
  };
  EXPECT_LT(
      difference(*loaded_gguf(llama), *loaded_gguf(changed_gguf(llama, [](GgufContents&) {}))),
      1e-12);
  EXPECT_THAT(with_key("general.architecture", std::string("phi3")),
              AllOf(HasSubstr("'phi3'"),
                    HasSubstr("llama, qwen2, qwen3, smollm3, gemma3, qwen3moe, gpt-oss, deepseek2, "
                              "kimi-linear, kimi-k3")));
  EXPECT_THAT(without_key("general.architecture"), HasSubstr("general.architecture is ''"));
  EXPECT_THAT(without_key("llama.context_length"), HasSubstr("context_length is missing"));
  EXPECT_THAT(with_key("llama.context_length", uint64_t{1} << 62),
              HasSubstr("llama: context_length: expected 2 to 16777216, got 4611686018427387904"));
  EXPECT_THAT(without_key("llama.attention.layer_norm_rms_epsilon"), HasSubstr("is missing"));
  EXPECT_THAT(with_key("llama.block_count", uint32_t{1'000'000}),
              HasSubstr("1000000 layers do not fit"));
  EXPECT_THAT(with_key("llama.block_count", 2.5f), HasSubstr("expected a whole number"));
  EXPECT_THAT(with_key("llama.attention.head_count", uint32_t{0}), HasSubstr("1 or more"));
  EXPECT_THAT(with_key("llama.attention.head_count_kv", uint32_t{3}),
              HasSubstr("llama: attention.head_count_kv: 4 heads"));
  EXPECT_THAT(with_key("llama.rope.scaling.type", std::string("longrope")),
              HasSubstr("rope.scaling.type longrope: attnres computes none, linear and yarn"));
  EXPECT_THAT(with_key("llama.attention.sliding_window", uint32_t{7}),
              HasSubstr("attention.sliding_window is 7"));
  EXPECT_NO_THROW(loaded_gguf(changed_gguf(llama, [](GgufContents& contents) {
    contents.key("llama.rope.scaling.factor") = 1.f;
    contents.key("llama.rope.scaling.type") = std::string("none");
    contents.key("llama.expert_count") = uint32_t{0};
  })));
  EXPECT_THAT(with_key("llama.expert_count", uint32_t{8}),
              HasSubstr("expert_used_count is missing"));
  EXPECT_THAT(with_key("llama.logit_scale", 2.f), HasSubstr("logit_scale"));
  EXPECT_THAT(with_key("llama.vocab_size", uint32_t{51}),
              HasSubstr("token_embd.weight has the shape [50, 64], expected [51, 64]"));

  const fs::path k3_file = saved_gguf(perturbed_model(gguf_k3()));
  const auto with_k3_key = [&](const std::string& key, const GgufValue& value) {
    return refusal(k3_file,
                   [&](GgufContents& contents) { contents.key("kimi-k3." + key) = value; });
  };
  EXPECT_THAT(with_k3_key("expert_gating_func", uint32_t{1}), HasSubstr("expert_gating_func is 1"));
  EXPECT_THAT(with_k3_key("expert_weights_norm", false), HasSubstr("expert_weights_norm is false"));
  EXPECT_THAT(with_k3_key("expert_group_count", uint32_t{4}), HasSubstr("expert_group_count is 4"));
  EXPECT_THAT(with_k3_key("attention.head_count_kv", std::vector<int32_t>{0, 1}),
              HasSubstr("head_count_kv has 2 entries, but block_count is 3"));
  EXPECT_THAT(with_k3_key("attention.key_length_mla", uint32_t{8}), HasSubstr("key_length_mla 8"));
  EXPECT_THAT(with_k3_key("attn_res.block_size", int32_t{-1}), HasSubstr("attn_res.block_size"));
}

// Of two keys that do not fit together the tensors tell which is wrong.
TEST(GgufRefusals, BlameTheKeyThatTensorsContradict) {
  const fs::path llama = saved_gguf(perturbed_model(gguf_llama()));
  const auto with_key = [&](const std::string& key, uint32_t value) {
    return refusal(llama, [&](GgufContents& contents) { contents.key("llama." + key) = value; });
  };
  EXPECT_THAT(with_key("attention.key_length", 8),
              HasSubstr("llama: attention.key_length: blk.0.attn_k.weight has 32 rows, which are "
                        "not those of 2 heads of 8 numbers"));
  EXPECT_THAT(with_key("attention.value_length", 8),
              HasSubstr("llama: attention.value_length is 8, but attnres computes only 16"));
  EXPECT_THAT(with_key("rope.dimension_count", 8),
              HasSubstr("llama: rope.dimension_count is 8, but attnres computes only 16"));
  EXPECT_THAT(with_key("attention.head_count", 3),
              HasSubstr("llama: attention.head_count: blk.0.attn_q.weight has 64 rows"));
  EXPECT_THAT(with_key("attention.head_count_kv", 3),
              HasSubstr("llama: attention.head_count_kv: 4 heads are not divisible by 3"));
}

struct WrongKey {
  std::string key;  // without the architecture before it
  GgufValue value;
  std::string message;
};

// Each key alone.
void expect_refused(const Transformer& model, const std::vector<WrongKey>& wrong_keys) {
  const fs::path file = saved_gguf(model);
  const std::string architecture = gguf_architecture(model.config());
  for (const WrongKey& wrong : wrong_keys) {
    EXPECT_THAT(refusal(file,
                        [&](GgufContents& contents) {
                          contents.key(architecture + "." + wrong.key) = wrong.value;
                        }),
                HasSubstr(architecture + ": " + wrong.key + wrong.message));
  }
}

ModelConfig with_key(const Transformer& model, const std::string& key, const GgufValue& value) {
  const fs::path file =
      changed_gguf(saved_gguf(model), [&, name = gguf_architecture(model.config()) + "." + key](
                                          GgufContents& contents) { contents.key(name) = value; });
  return read_gguf_config(GgufFile(file)).stored.model;
}

Transformer with_yarn() {
  return perturbed_model(
      gguf_relative({{"grouped_query", {{"qk_norm", true}}}, {"rope_scaling", gguf_yarn()}}));
}

// The bias of its experts' choice is zero, as llama.cpp's.
Transformer with_softmax_experts() {
  return {gguf_qwen3moe(), kSmallVocabulary, /*seed=*/1, at::kFloat};
}

TEST(GgufRefusals, NameTheFilesKeyOfAnAbsurdNumber) {
  const std::string norm = "attention.layer_norm_rms_epsilon", theta = "rope.freq_base";
  const std::string small = ": expected 1e-30 to 1, got ";
  const std::string large = ": expected above 1 and at most 1000000000000, got ";
  const std::string positive = ": expected above 0 and at most 1000000, got ";
  const Transformer gemma = perturbed_model(gguf_gemma3());
  expect_refused(gemma, {{norm, 1e30F, small + "1e+30"},
                         {norm, 0.F, small + "0"},
                         {norm, -1e-6F, small + "-1e-06"},
                         {norm, NAN, small + "nan"},
                         {norm, INFINITY, small + "inf"},
                         {theta, 1e30F, large + "1e+30"},
                         {theta, -500.F, large + "-500"},
                         {"rope.freq_base_swa", 1e30F, ": expected 0 to 1000000000000"},
                         {"rope.scaling.factor", 1e30F, ": expected 1 to 1000000"}});
  expect_refused(with_yarn(),
                 {{"rope.scaling.attn_factor", 1e30F, ": expected 0 to 1000000, got "}});
  expect_refused(perturbed_model(gguf_k3()),
                 {{"expert_weights_scale", 1e30F, positive},
                  {"expert_weights_scale", -1.F, positive},
                  {"activation.situ_beta", 1e30F, positive},
                  {"kda.gate_lower_bound", -1e30F, ": expected -1000000 to 0"},
                  {"expert_used_count", uint32_t{5}, ": 5 cannot be chosen of 4"},
                  {"attention.head_count_kv", std::vector<int32_t>{0, 0, 0},
                   ": this model has no latent attention"},
                  {"ssm.conv_kernel", uint32_t{0}, ": expected a whole number from 1"}});
  // The largest that are not refused.
  EXPECT_EQ(with_key(gemma, norm, 1.F).norm_eps, 1);
  EXPECT_EQ(with_key(gemma, theta, 1e12F).rope_theta, 1e12);
}

// Where a recipe's 0 stands for a default, a file's does not.
TEST(GgufRefusals, TakeNoZeroForADefault) {
  const uint32_t zero = 0;
  const std::string positive = ": expected 1 or more, got 0";
  expect_refused(
      perturbed_model(gguf_llama()),
      {{"attention.head_count_kv", zero, positive},
       {"attention.key_length", zero, positive},
       {"feed_forward_length", zero, positive},
       {"embedding_length", zero, ": expected 4 or more (attention.head_count), got 0"}});
  expect_refused(with_softmax_experts(),
                 {{"expert_count", zero, positive}, {"expert_used_count", zero, positive}});
  expect_refused(perturbed_model(gguf_k3()),
                 {{"attention.kv_lora_rank", zero, positive},
                  {"attention.value_length_mla", zero, positive},
                  {"kda.head_dim", zero, positive},
                  {"expert_feed_forward_length", zero, positive},
                  {"expert_count", zero, " is 0, but of its 3 layers only 1 are without experts"}});
  const std::string above = ": expected more than 0, got 0";
  expect_refused(perturbed_model(gguf_gemma3()), {{"rope.freq_base_swa", 0.F, above}});
  expect_refused(with_yarn(), {{"rope.scaling.attn_factor", 0.F, above}});
}

// No scale, and a width made of feed_forward_length.
TEST(GgufRefusals, TakeZerosAsLlamaCppDoes) {
  const Transformer k3 = perturbed_model(gguf_k3()), softmax = with_softmax_experts();
  const auto experts = [](const Transformer& model, const char* key, const GgufValue& value) {
    return with_key(model, key, value).settings<ExpertsSettings>();
  };
  EXPECT_EQ(experts(k3, "expert_weights_scale", 0.F).scaling, 1);
  EXPECT_EQ(experts(k3, "expert_weights_scale", 2.F).scaling, 2);
  EXPECT_EQ(experts(softmax, "expert_feed_forward_length", uint32_t{0}).width, 96 / 2);
  EXPECT_EQ(experts(softmax, "expert_feed_forward_length", uint32_t{32}).width, 32);
}

TEST(GgufRefusals, NameFilesThatAreNoModels) {
  const fs::path llama = saved_gguf(perturbed_model(gguf_llama()));
  const auto of_type = [&](const std::string& type) {
    return refusal(llama, [&](GgufContents& contents) { contents.key("general.type") = type; });
  };
  EXPECT_THAT(of_type("adapter"),
              AllOf(HasSubstr("a LoRA changes of a model"), HasSubstr("llama-export-lora")));
  EXPECT_THAT(of_type("mmproj"), HasSubstr("name the text model's file"));
  EXPECT_THAT(of_type("imatrix"), HasSubstr("statistics"));
  EXPECT_THAT(refusal(llama, [](GgufContents& contents) { contents.tensors.clear(); }),
              HasSubstr("has no tensors: it is a vocabulary alone"));
  EXPECT_NO_THROW(loaded_gguf(changed_gguf(
      llama, [](GgufContents& contents) { contents.key("general.type") = std::string("model"); })));
}

// Keys that llama.cpp's converter writes of a configuration and llama.cpp does not read.
TEST(GgufRefusals, RefusePositionsThatNobodyComputes) {
  const fs::path path = saved_gguf(perturbed_model(
      gguf_relative({{"grouped_query", {{"qk_norm", true}}}, {"rope_scaling", gguf_yarn()}})));
  const auto with_key = [&](const std::string& key, float value) {
    return refusal(
        path, [&](GgufContents& contents) { contents.key("qwen3.rope.scaling." + key) = value; });
  };
  EXPECT_THAT(with_key("yarn_beta_fast", 16), HasSubstr("yarn_beta_fast is 16"));
  EXPECT_THAT(with_key("yarn_attn_factor", 1.5), HasSubstr("yarn_attn_factor is 1.5"));
  EXPECT_NO_THROW(loaded_gguf(changed_gguf(path, [](GgufContents& contents) {
    contents.key("qwen3.rope.scaling.yarn_beta_fast") = 32.f;
    contents.key("qwen3.rope.scaling.yarn_attn_factor") = static_cast<float>(1 + 0.1 * std::log(4));
  })));
}

TEST(GgufRefusals, RefuseOtherTensors) {
  const fs::path path = saved_gguf(perturbed_model(gguf_k3()));
  EXPECT_THAT(refusal(path, [](GgufContents& contents) { contents.tensors.pop_back(); }),
              HasSubstr("is missing"));
  EXPECT_THAT(
      refusal(path,
              [](GgufContents& contents) { contents.tensor("blk.0.ssm_a").name = "blk.0.ssm_b"; }),
      HasSubstr("blk.0.ssm_a is missing"));
  EXPECT_THAT(refusal(path,
                      [](GgufContents& contents) {
                        contents.tensors.push_back(contents.tensor("output_norm.weight"));
                        contents.tensors.back().name = "blk.0.attn_q.bias";
                      }),
              HasSubstr("blk.0.attn_q.bias is no tensor of a model"));
  EXPECT_THAT(refusal(path,
                      [](GgufContents& contents) {
                        GgufTensor& decay = contents.tensor("blk.0.ssm_a");
                        decay.values = [shape = decay.shape] { return at::ones(shape); };
                      }),
              HasSubstr("blk.0.ssm_a: expected negative numbers"));
  EXPECT_THAT(refusal(path,
                      [](GgufContents& contents) {
                        GgufTensor& norm = contents.tensor("output_norm.weight");
                        norm.values = [] { return at::full({64}, NAN); };
                      }),
              HasSubstr("output_norm.weight holds numbers that are not finite"));
}

// One key at a time.
TEST(GgufRefusals, NameTheKeyThatLlamaCppDoesNotCompute) {
  const auto refused = [](const ModelConfig& model, const std::string& key, const Json& value) {
    Json json = write_config(model);
    json[Json::json_pointer(key)] = value;
    const ModelConfig config = read_model_config(json);
    return message_of<Error>([&] { gguf_architecture(config); });
  };
  const auto expected = [](const std::string& name, const std::string& key, const Json& value,
                           const Json& computed) {
    std::string dotted = key;
    std::replace(dotted.begin(), dotted.end(), '/', '.');
    const auto text = [](const Json& json) {
      return json.is_string() ? json.get<std::string>() : json.dump();
    };
    return fmt::format("model{} {}: llama.cpp computes only {} in {}; write safetensors", dotted,
                       text(value), text(computed), name);
  };
  const ModelConfig moe = gguf_qwen3moe();
  EXPECT_EQ(gguf_architecture(moe), "qwen3moe");
  for (const auto& [key, value, computed] : {std::tuple("/experts/shared", Json(1), Json(0)),
                                             {"/experts/dense_layers", 1, 0},
                                             {"/experts/latent_width", 32, 0},
                                             {"/experts/groups", 2, 1},
                                             {"/experts/scaling", 2.5, 1},
                                             {"/experts/renormalize", false, true},
                                             {"/experts/router_bias", true, false},
                                             {"/experts/bias", true, false},
                                             {"/grouped_query/qkv_bias", true, false},
                                             {"/grouped_query/output_bias", true, false},
                                             {"/grouped_query/score_scale", 0.5, 0},
                                             {"/output_norm", true, false},
                                             {"/embedding_scale", 2.5, 1},
                                             {"/activation/type", "gelu_tanh", "silu"}}) {
    EXPECT_EQ(refused(moe, key, value), expected("qwen3moe", key, value, computed));
  }
  EXPECT_THAT(refused(moe, "/attention", {"grouped_query", "sliding_window"}),
              HasSubstr("but layer 1 (from 0) is sliding_window"));
  const Json llama3 = {{"type", "llama3"}, {"factor", 4}, {"original_context", 32}};
  EXPECT_THAT(refused(moe, "/rope_scaling", llama3), HasSubstr("and this model is qwen3moe"));

  const ModelConfig gpt_oss = gguf_gpt_oss();
  EXPECT_EQ(gguf_architecture(gpt_oss), "gpt-oss");
  for (const auto& [key, value, computed] :
       {std::tuple("/grouped_query/qkv_bias", Json(false), Json(true)),
        {"/grouped_query/output_bias", false, true},
        {"/grouped_query/qk_norm", true, false},
        {"/experts/router_bias", false, true},
        {"/experts/bias", false, true},
        {"/activation/type", "silu", "swiglu_oai"},
        {"/activation/limit", 1.5, 7},
        {"/tie_embeddings", true, false},
        {"/sliding_window/rope_theta", 20.5, 0}}) {
    EXPECT_EQ(refused(gpt_oss, key, value), expected("gpt-oss", key, value, computed));
  }
  Json yarn = gguf_yarn();
  yarn["truncate"] = false;
  EXPECT_THAT(refused(gpt_oss, "/rope_scaling", yarn), HasSubstr("truncate false"));

  const ModelConfig k3 = gguf_k3();
  for (const auto& [key, value, computed] :
       {std::tuple("/experts/scores", Json("softmax"), Json("sigmoid")),
        {"/experts/router_bias", true, false},
        {"/experts/bias", true, false},
        {"/experts/groups", 2, 1},
        {"/experts/latent_norm", false, true},
        {"/experts/renormalize", false, true},
        {"/latent_attention/rotary", true, false},
        {"/latent_attention/score_scale", 0.5, 0},
        {"/output_norm", true, false},
        {"/embedding_scale", 2.5, 1}}) {
    EXPECT_EQ(refused(k3, key, value), expected("kimi-k3", key, value, computed));
  }
}

// What of a dense model no relative of Llama has beside the rest.
TEST(GgufRefusals, NameWhatNoRelativeOfLlamaHas) {
  const auto refused = [](const ModelConfig& model, const Json& changes) {
    Json json = write_config(model);
    json.merge_patch(changes);
    const ModelConfig config = read_model_config(json);
    return message_of<Error>([&] { gguf_architecture(config); });
  };
  const auto heads = [](const char* key) { return Json{{"grouped_query", {{key, true}}}}; };
  const ModelConfig llama = gguf_llama(), smollm = gguf_smollm3(), gemma = gguf_gemma3();
  for (const auto& [model, changes, message] :
       {std::tuple(llama, heads("output_bias"), "grouped_query.output_bias is true, but only gpt"),
        {llama, heads("sinks"), "grouped_query.sinks is true, but only gpt"},
        {llama, {{"embedding_scale", 2.5}}, "embedding_scale is 2.5, but models without"},
        {llama, {{"grouped_query", {{"score_scale", 0.5}}}}, "score_scale is 0.5, but models"},
        {llama, {{"activation", {{"type", "gelu_tanh"}}}}, "activation.type is gelu_tanh, but"},
        {llama,
         {{"attention", {"sliding_window"}}, {"sliding_window", {{"rope_theta", 20.5}}}},
         "sliding_window.rope_theta is 20.5, but"},
        {llama,
         {{"attention", {"grouped_query", "sliding_window"}}},
         "attention is sliding_window"},
        {smollm, heads("qkv_bias"), "grouped_query.qkv_bias is true, but SmolLM 3"},
        {smollm, heads("qk_norm"), "grouped_query.qk_norm is true, but SmolLM 3"},
        {gemma, heads("qkv_bias"), "grouped_query.qkv_bias is true, but Gemma 3"},
        {gemma, {{"grouped_query", {{"qk_norm", false}}}}, "qk_norm is false, but Gemma 3"},
        {gemma,
         {{"embedding_scale", 2.5}},
         "embedding_scale is 2.5, but Gemma 3, which has "
         "output_norm, has sqrt(width), 8"},
        {gemma, {{"grouped_query", {{"score_scale", 0.3}}}}, "score_scale is 0.3, but Gemma 3"},
        {gemma, {{"activation", {{"type", "silu"}}}}, "activation.type is silu, but Gemma 3"},
        {gemma, {{"attention", {"nope", "sliding_window"}}}, "attention is nope, but Gemma 3"}}) {
    EXPECT_THAT(refused(model, changes),
                AllOf(HasSubstr(message), HasSubstr("computes no other; write safetensors")));
  }
}

// Models of Llama's family and of DeepSeek-V3; gguf_model_test.cc has Kimi's.
TEST(GgufRefusals, SayWhatLlamaCppDoesNotCompute) {
  const auto refused = [](const Json& json) {
    const ModelConfig config = read_model_config(json);
    return message_of<Error>([&] { gguf_architecture(config); });
  };
  const auto relative = [&](const Json& changes) {
    Json json = {{"layers", 4}, {"width", 64}, {"heads", 4}};
    json.merge_patch(changes);
    return refused(json);
  };
  const Json qk_norm = {{"qk_norm", true}}, qkv_bias = {{"qkv_bias", true}};
  const Json window = {"grouped_query", "sliding_window"};
  EXPECT_THAT(relative({{"attention", {"sliding_window"}}}),
              AllOf(HasSubstr("Mistral as Llama, without a window"), HasSubstr("safetensors")));
  EXPECT_THAT(relative({{"attention", window}, {"grouped_query", qk_norm}}),
              HasSubstr("sliding_window: llama.cpp computes qwen3 without windows"));
  EXPECT_THAT(relative({{"head_width", 8}, {"grouped_query", qkv_bias}}),
              HasSubstr("head_width 8: llama.cpp computes qwen2 with width / heads, 64 / 4"));
  EXPECT_THAT(relative({{"attention", {"grouped_query", "nope"}}}),
              HasSubstr("every fourth layer, and no other, without positions, but layer 1"));
  EXPECT_THAT(relative({{"grouped_query", {{"qk_norm", true}, {"qkv_bias", true}}}}),
              HasSubstr("model.grouped_query.qkv_bias is true, but Qwen 3, which has qk_norm, has "
                        "false, and llama.cpp computes no other; write safetensors"));
  const Json llama3 = {{"type", "llama3"}, {"factor", 4}, {"original_context", 32}};
  EXPECT_THAT(relative({{"grouped_query", qk_norm}, {"rope_scaling", llama3}}),
              HasSubstr("llama3: llama.cpp scales positions so in Llama only"));
  Json yarn = {{"type", "yarn"}, {"factor", 4}, {"original_context", 32}, {"beta_fast", 16}};
  EXPECT_THAT(relative({{"rope_scaling", yarn}}), HasSubstr("beta_fast 16"));
  yarn["beta_fast"] = 32;
  yarn["truncate"] = false;
  EXPECT_THAT(relative({{"rope_scaling", yarn}}), HasSubstr("truncate false"));
  yarn["truncate"] = true;
  const auto gemma = [&](const Json& changes) {
    Json json = {{"attention", window},
                 {"grouped_query", qk_norm},
                 {"sliding_window", {{"rope_theta", 20.0}}},
                 {"activation", {{"type", "gelu_tanh"}}},
                 {"output_norm", true},
                 {"embedding_scale", 8.0}};
    json.merge_patch(changes);
    return relative(json);
  };
  EXPECT_THAT(gemma({{"grouped_query", {{"score_scale", 0.5}}}}),
              HasSubstr("score_scale 0.5 (query_pre_attn_scalar): llama.cpp computes this Gemma 3 "
                        "with 0.25"));
  EXPECT_THAT(gemma({{"rope_scaling", yarn}}), HasSubstr("yarn: llama.cpp does not leave it out"));
  EXPECT_THAT(gemma({{"sliding_window", {{"rope_theta", 0.0}}},
                     {"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}),
              HasSubstr("does not scale the positions of layers with a window"));
  const auto deepseek = [&](const Json& changes) {
    return message_of<Error>([&] { gguf_architecture(gguf_deepseek2(changes)); });
  };
  EXPECT_THAT(deepseek({{"rope_scaling", {{"type", "linear"}, {"factor", 2}}}}),
              HasSubstr("deepseek2 with none, or with yarn"));
  EXPECT_THAT(deepseek({{"latent_attention", {{"score_scale", 0.5}}}}),
              HasSubstr("scales deepseek2's scores with yarn only"));
  EXPECT_THAT(deepseek({{"layers", 27}, {"latent_attention", {{"q_rank", 32}}}}),
              HasSubstr("deepseek2 of 27 layers for one without it"));
}

}  // namespace
}  // namespace attnres::testing::gguf_refusal_test
