#include "attnres/formats/gguf_softmax_experts.h"

#include "attnres/formats/gguf_llama.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/experts.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kExpertWidth = "expert_feed_forward_length";
constexpr double kLimit = 7;  // of gpt-oss' activation, which its files do not say

void check_no_windows(const ModelConfig& config, const char* name) {
  require(
      !config.has_attention(kSlidingWindow) && !config.has_attention(kNope),
      "model.attention sliding_window or nope: llama.cpp computes {} with experts without them; "
      "write safetensors",
      name);
}

void check_qwen3moe(const ModelConfig& config) {
  check_no_windows(config, "qwen3moe");
  check_gguf_softmax_experts(config);
  require(config.activation.type == "silu",
          "model.activation.type {}: llama.cpp computes qwen3moe with silu; write safetensors",
          config.activation.type);
}

void write_qwen3moe(const ModelConfig& config, GgufKeys& keys) {
  write_gguf_heads(config, keys);
  write_gguf_softmax_experts(config, keys);
}

void read_qwen3moe(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  keys.only(kGgufWindow, 0);
  read_gguf_heads(file, keys, model);
  read_gguf_softmax_experts(keys, model);
  model["grouped_query"]["qk_norm"] = true;
}

bool has_window_of_gpt_oss(int64_t layer) {
  return layer % 2 == 0;
}

void check_gguf_gpt_oss(const ModelConfig& config) {
  check_gguf_softmax_experts(config);
  const auto& heads = config.settings<GroupedQuerySettings>();
  const auto& experts = config.settings<ExpertsSettings>();
  require(heads.qkv_bias && heads.output_bias && heads.sinks && !heads.qk_norm &&
              experts.router_bias && experts.bias && config.activation.type == "swiglu_oai" &&
              config.activation.limit == kLimit && !config.tie_embeddings,
          "this model's biases, sinks, norms and activation together are not gpt-oss', whose limit "
          "is {}, with a head of its own; write safetensors",
          kLimit);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const char* kind = has_window_of_gpt_oss(layer) ? kSlidingWindow : kGroupedQuery;
    require(
        config.attention_of(layer) == kind,
        "model.attention: llama.cpp computes gpt-oss with a window in every second layer from the "
        "first on, and no other, but layer {} (from 0) is {}; write safetensors",
        layer, config.attention_of(layer));
  }
  require(
      config.settings<SlidingWindowSettings>().rope_theta == 0,
      "model.sliding_window.rope_theta: llama.cpp computes gpt-oss with one for all layers; write "
      "safetensors");
}

void write_gguf_gpt_oss(const ModelConfig& config, GgufKeys& keys) {
  write_qwen3moe(config, keys);
  keys.add(kGgufWindow, config.settings<SlidingWindowSettings>().window);
}

void read_gguf_gpt_oss(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  read_gguf_heads(file, keys, model);
  read_gguf_softmax_experts(keys, model);
  model["experts"].update({{"router_bias", true}, {"bias", true}});
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
  return experts.count > 0 && experts.scores == "softmax";
}

const char* softmax_experts_name(const ModelConfig& config) {
  const auto& heads = config.settings<GroupedQuerySettings>();
  if (heads.sinks) return "gpt-oss";
  return heads.qk_norm ? "qwen3moe" : "llama";
}

void check_gguf_softmax_experts(const ModelConfig& config) {
  const auto& experts = config.settings<ExpertsSettings>();
  require(
      experts.shared == 0 && experts.dense_layers == 0 && experts.latent_width == 0 &&
          experts.groups == 1 && experts.scaling == 1 && experts.renormalize,
      "model.experts: llama.cpp computes those that softmax chooses in every layer, without "
      "shared ones, groups, a latent width or a scaling, and divides their weights by their sum; "
      "write safetensors");
  const auto& heads = config.settings<GroupedQuerySettings>();
  const bool is_gpt_oss = heads.sinks;
  require(
      is_gpt_oss ||
          (!heads.qkv_bias && !heads.output_bias && !experts.router_bias && !experts.bias),
      "model.grouped_query or model.experts with biases: llama.cpp computes them beside experts "
      "only in gpt-oss, with sinks; write safetensors");
  require(heads.score_scale == 0 && !config.output_norm && config.embedding_scale == 1,
          "model.grouped_query.score_scale, output_norm or embedding_scale: llama.cpp does not "
          "compute them with these experts; write safetensors");
}

void write_gguf_softmax_experts(const ModelConfig& config, GgufKeys& keys) {
  const auto& experts = config.settings<ExpertsSettings>();
  keys.add("expert_count", experts.count);
  keys.add("expert_used_count", experts.chosen);
  keys.add(kExpertWidth, experts.width);
}

void read_gguf_softmax_experts(const ConfigKeys& keys, Json& model) {
  constexpr const char* kScale = "expert_weights_scale";
  const double scale = keys.number(kScale, 0);
  require(scale == 0 || scale == 1, "{}: {} is {}, but attnres computes only 1", keys.what(),
          kScale, scale);
  model["experts"] = {{"count", keys.whole("expert_count")},
                      {"chosen", keys.whole("expert_used_count")},
                      {"width", keys.whole(kExpertWidth, model["ffn_width"].get<int64_t>())},
                      {"shared", 0},
                      {"dense_layers", 0},
                      {"scores", "softmax"}};
}

std::vector<GgufLayout> gguf_softmax_experts_layouts() {
  return {{.architecture = GgufArchitecture::qwen3moe,
           .name = "qwen3moe",
           .check = check_qwen3moe,
           .write = write_qwen3moe,
           .read = read_qwen3moe},
          {.architecture = GgufArchitecture::gpt_oss,
           .name = "gpt-oss",
           .check = check_gguf_gpt_oss,
           .write = write_gguf_gpt_oss,
           .read = read_gguf_gpt_oss}};
}

}  // namespace attnres
