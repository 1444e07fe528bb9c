#include "attnres/formats/gguf_softmax_experts.h"

#include "attnres/formats/gguf_llama.h"
#include "attnres/formats/gguf_rope.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/experts.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kExpertWidth = "expert_feed_forward_length";
constexpr double kLimit = 7;  // of gpt-oss' activation, which its files do not say

// Of all three.
void check_experts_alike(const ModelConfig& config, const std::string& name) {
  const auto& experts = config.settings<ExpertsSettings>();
  require_in_llama_cpp(name, "experts.shared", experts.shared, 0);
  require_in_llama_cpp(name, "experts.dense_layers", experts.dense_layers, 0);
  require_in_llama_cpp(name, "experts.latent_width", experts.latent_width, 0);
  require_in_llama_cpp(name, "experts.groups", experts.groups, 1);
  require_in_llama_cpp(name, "experts.scaling", experts.scaling, 1);
  require_in_llama_cpp(name, "experts.renormalize", experts.renormalize, true);
  const double score_scale = config.settings<GroupedQuerySettings>().score_scale;
  require_in_llama_cpp(name, "grouped_query.score_scale", score_scale, 0);
  require_in_llama_cpp(name, "output_norm", config.output_norm, false);
  require_in_llama_cpp(name, "embedding_scale", config.embedding_scale, 1);
}

// A width of 0 stands for ffn_width / chosen, to llama.cpp in qwen3moe too.
Json read_softmax_settings(const ConfigKeys& keys) {
  constexpr const char* kScale = "expert_weights_scale";
  const double scale = keys.number(kScale, 0);
  require(scale == 0 || scale == 1, "{}: {} is {}, but attnres computes only 1", keys.what(),
          kScale, scale);
  const int64_t count = keys.positive("expert_count"), chosen = keys.positive("expert_used_count");
  return {{"count", count}, {"chosen", chosen},  {"width", keys.whole(kExpertWidth, 0)},
          {"shared", 0},    {"dense_layers", 0}, {"scores", "softmax"}};
}

bool has_window_of_gpt_oss(int64_t layer) {
  return layer % 2 == 0;
}

void check_gguf_gpt_oss(const ModelConfig& config) {
  constexpr const char* kName = "gpt-oss";
  check_experts_alike(config, kName);
  check_gguf_rope(config.rope_scaling, /*computes_llama3=*/false, kName);
  const auto& heads = config.settings<GroupedQuerySettings>();
  const auto& experts = config.settings<ExpertsSettings>();
  require_in_llama_cpp(kName, "grouped_query.qkv_bias", heads.qkv_bias, true);
  require_in_llama_cpp(kName, "grouped_query.output_bias", heads.output_bias, true);
  require_in_llama_cpp(kName, "grouped_query.qk_norm", heads.qk_norm, false);
  require_in_llama_cpp(kName, "experts.router_bias", experts.router_bias, true);
  require_in_llama_cpp(kName, "experts.bias", experts.bias, true);
  require_in_llama_cpp(kName, "activation.type", config.activation.type, "swiglu_oai");
  require_in_llama_cpp(kName, "activation.limit", config.activation.limit, kLimit);
  require_in_llama_cpp(kName, "tie_embeddings", config.tie_embeddings, false);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const char* kind = has_window_of_gpt_oss(layer) ? kSlidingWindow : kGroupedQuery;
    require(
        config.attention_of(layer) == kind,
        "model.attention: llama.cpp computes gpt-oss with a window in every second layer from the "
        "first on, and no other, but layer {} (from 0) is {}; write safetensors",
        layer, config.attention_of(layer));
  }
  const double theta = config.settings<SlidingWindowSettings>().rope_theta;
  require_in_llama_cpp(kName, "sliding_window.rope_theta", theta, 0);
}

void write_gguf_gpt_oss(const ModelConfig& config, GgufKeys& keys) {
  write_gguf_softmax_experts(config, keys);
  keys.add(kGgufWindow, config.settings<SlidingWindowSettings>().window);
}

void read_gguf_gpt_oss(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  read_gguf_heads(file, keys, model);
  model["experts"] = read_softmax_settings(keys);
  model["experts"].update(
      {{"width", keys.positive(kExpertWidth)}, {"router_bias", true}, {"bias", true}});
  model["activation"] = {{"type", "swiglu_oai"}, {"limit", kLimit}};
  model["grouped_query"] = {{"qkv_bias", true}, {"output_bias", true}, {"sinks", true}};
  std::vector<std::string> kinds;
  for (int64_t layer = 0; layer < model["layers"].get<int64_t>(); ++layer) {
    kinds.emplace_back(has_window_of_gpt_oss(layer) ? kSlidingWindow : kGroupedQuery);
  }
  model["attention"] = kinds;
  model["sliding_window"]["window"] = keys.whole(kGgufWindow);
}

}  // namespace

bool has_softmax_experts(const ModelConfig& config) {
  const auto& experts = config.settings<ExpertsSettings>();
  return experts.count > 0 && experts.has_softmax_scores();
}

const char* softmax_experts_name(const ModelConfig& config) {
  const auto& heads = config.settings<GroupedQuerySettings>();
  if (heads.sinks) return "gpt-oss";
  return heads.qk_norm ? "qwen3moe" : "llama";
}

void check_gguf_softmax_experts(const ModelConfig& config, const std::string& name) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    require(config.attention_of(layer) == kGroupedQuery,
            "model.attention: llama.cpp computes {} with experts and no windows, and positions in "
            "every layer, but layer {} (from 0) is {}; write safetensors",
            name, layer, config.attention_of(layer));
  }
  check_experts_alike(config, name);
  check_gguf_rope(config.rope_scaling, /*computes_llama3=*/name == "llama", name);
  const auto& heads = config.settings<GroupedQuerySettings>();
  const auto& experts = config.settings<ExpertsSettings>();
  require_in_llama_cpp(name, "grouped_query.qkv_bias", heads.qkv_bias, false);
  require_in_llama_cpp(name, "grouped_query.output_bias", heads.output_bias, false);
  require_in_llama_cpp(name, "experts.router_bias", experts.router_bias, false);
  require_in_llama_cpp(name, "experts.bias", experts.bias, false);
  require_in_llama_cpp(name, "activation.type", config.activation.type, "silu");
}

void write_gguf_softmax_experts(const ModelConfig& config, GgufKeys& keys) {
  write_gguf_heads(config, keys);
  const auto& experts = config.settings<ExpertsSettings>();
  keys.add("expert_count", experts.count);
  keys.add("expert_used_count", experts.chosen);
  keys.add(kExpertWidth, experts.width);
}

void read_gguf_softmax_experts(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  keys.only(kGgufWindow, 0);
  read_gguf_heads(file, keys, model);
  model["experts"] = read_softmax_settings(keys);
}

std::vector<GgufLayout> gguf_softmax_experts_layouts() {
  return {
      {.architecture = GgufArchitecture::qwen3moe,
       .name = "qwen3moe",
       .check = [](const ModelConfig& config) { check_gguf_softmax_experts(config, "qwen3moe"); },
       .write = write_gguf_softmax_experts,
       .read =
           [](const GgufFile& file, const ConfigKeys& keys, Json& model) {
             read_gguf_softmax_experts(file, keys, model);
             model["grouped_query"]["qk_norm"] = true;
           }},
      {.architecture = GgufArchitecture::gpt_oss,
       .name = "gpt-oss",
       .check = check_gguf_gpt_oss,
       .write = write_gguf_gpt_oss,
       .read = read_gguf_gpt_oss}};
}

}  // namespace attnres
