#include "attnres/formats/gguf_llama.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_rope.h"
#include "attnres/formats/gguf_softmax_experts.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/experts.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kWindowPattern = "attention.sliding_window_pattern";
constexpr const char* kWindowTheta = "rope.freq_base_swa";
constexpr int64_t kSmollmPeriod = 4;       // of layers without positions
constexpr int64_t kGemmaPeriod = 6;        // of layers without a window, if a file says nothing
constexpr int64_t kLayersOfGemma27B = 62;  // by which llama.cpp knows it
constexpr double kWindowThetaOfNone = 10000;

// Throws Error that blames the key unless the first layer's map has the rows of so many heads.
void check_rows(const GgufFile& file, const ConfigKeys& keys, const char* key, char map,
                int64_t heads, int64_t head_width) {
  const std::string name = fmt::format("blk.0.attn_{}.weight", map);
  if (!file.contains(name)) return;  // as it is told where tensors are read
  const int64_t rows = file.info(name).shape.front();
  require(rows % head_width == 0 && rows / head_width == heads,
          "{}: {}: {} has {} rows, which are not those of {} heads of {} numbers", keys.what(), key,
          name, rows, heads, head_width);
}

// Of sizes that do not fit together, the tensors tell which is wrong.
void check_heads(const GgufFile& file, const ConfigKeys& keys, int64_t heads, int64_t kv_heads,
                 int64_t head_width) {
  for (const char* same : {"attention.value_length", "rope.dimension_count"}) {
    if (keys.whole(same, head_width) == head_width) continue;
    check_rows(file, keys, "attention.key_length", 'k', kv_heads, head_width);
    keys.only(same, head_width);
  }
  if (heads % kv_heads != 0) check_rows(file, keys, "attention.head_count", 'q', heads, head_width);
}

void refuse_other_llamas(const ConfigKeys& keys) {
  keys.only("attention.causal", true);
  keys.only("use_parallel_residual", false);
  for (const char* changing :
       {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale",
        "residual_scale", "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping"}) {
    require(keys.missing(changing), "{}: {}: attnres does not compute models that have it",
            keys.what(), changing);
  }
}

// Also of those whose windows llama.cpp does not compute, and its converter leaves out.
void read_without_windows(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  keys.only(kGgufWindow, 0);
  keys.only("expert_count", 0);
  read_gguf_heads(file, keys, model);
}

void check_without_windows(const ModelConfig& config, const std::string& name) {
  require(!config.has_attention(kSlidingWindow),
          "model.attention sliding_window: llama.cpp computes {} without windows; write "
          "safetensors",
          name);
  check_gguf_rope(config.rope_scaling, /*computes_llama3=*/name == "llama", name);
}

void check_llama(const ModelConfig& config) {
  constexpr const char* kName = "llama";
  if (!has_softmax_experts(config)) return check_without_windows(config, kName);
  check_gguf_softmax_experts(config, kName);
  const int64_t width = config.settings<ExpertsSettings>().width;
  require(width == config.ffn_width,
          "model.experts.width {}: llama.cpp computes llama with experts of ffn_width, {}; write "
          "safetensors",
          width, config.ffn_width);
}

void write_llama(const ModelConfig& config, GgufKeys& keys) {
  (has_softmax_experts(config) ? write_gguf_softmax_experts : write_gguf_heads)(config, keys);
}

// Mixtral's experts are of feed_forward_length, whatever else the file says.
void read_llama_or_mixtral(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  if (keys.whole("expert_count", 0) == 0) return read_without_windows(file, keys, model);
  read_gguf_softmax_experts(file, keys, model);
  model["experts"]["width"] = model["ffn_width"];
}

void check_qwen2(const ModelConfig& config) {
  check_without_windows(config, "qwen2");
  require(config.heads * config.head_width == config.width,
          "model.head_width {}: llama.cpp computes qwen2 with width / heads, {} / {}; write "
          "safetensors",
          config.head_width, config.width, config.heads);
}

bool is_nope_of_smollm3(int64_t layer) {
  return (layer + 1) % kSmollmPeriod == 0;
}

void check_smollm3(const ModelConfig& config) {
  check_without_windows(config, "smollm3");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    require((config.attention_of(layer) == kNope) == is_nope_of_smollm3(layer),
            "model.attention: llama.cpp computes smollm3 with every fourth layer, and no other, "
            "without positions, but layer {} (from 0) is {}; write safetensors",
            layer, config.attention_of(layer));
  }
}

void read_gguf_smollm3(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  read_without_windows(file, keys, model);
  std::vector<std::string> kinds;
  for (int64_t layer = 0; layer < model["layers"].get<int64_t>(); ++layer) {
    kinds.emplace_back(is_nope_of_smollm3(layer) ? kNope : kGroupedQuery);
  }
  model["attention"] = kinds;
}

// As llama.cpp scales scores; 0 stands for 1 / sqrt(head_width).
double gemma_score_scale(int64_t layers, int64_t width, int64_t heads, int64_t head_width) {
  const int64_t channels = layers == kLayersOfGemma27B ? width / heads : head_width;
  return channels == head_width ? 0 : 1 / std::sqrt(static_cast<double>(channels));
}

void check_gemma3(const ModelConfig& config) {
  check_gguf_rope(config.rope_scaling, /*computes_llama3=*/false, "gemma3");
  const double usual = 1 / std::sqrt(static_cast<double>(config.head_width));
  const auto shown = [&](double scale) { return scale == 0 ? usual : scale; };
  const double given = shown(config.settings<GroupedQuerySettings>().score_scale),
               computed = shown(
                   gemma_score_scale(config.layers, config.width, config.heads, config.head_width));
  require(std::abs(given / computed - 1) < 1e-6,
          "model.grouped_query.score_scale {} (query_pre_attn_scalar): llama.cpp computes this "
          "Gemma 3 with {}; write safetensors",
          given, computed);
  if (!config.has_attention(kSlidingWindow)) return;
  require(config.rope_scaling.type != "yarn",
          "model.rope_scaling.type yarn: llama.cpp does not leave it out in layers with a window; "
          "write safetensors");
  require(config.rope_scaling.is_none() || config.settings<SlidingWindowSettings>().rope_theta > 0,
          "model.sliding_window.rope_theta 0 with rope_scaling: llama.cpp does not scale the "
          "positions of layers with a window; write safetensors");
}

void write_gguf_gemma3(const ModelConfig& config, GgufKeys& keys) {
  write_gguf_heads(config, keys);
  if (!config.has_attention(kSlidingWindow)) return;
  std::vector<bool> windows;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    windows.push_back(config.attention_of(layer) == kSlidingWindow);
  }
  const auto& settings = config.settings<SlidingWindowSettings>();
  keys.add(kGgufWindow, settings.window);
  keys.add_value(kWindowPattern, windows);
  keys.add(kWindowTheta, settings.rope_theta > 0 ? settings.rope_theta : config.rope_theta);
}

// Whether layers have a window: a list, or a period whose last layer has none.
std::vector<bool> read_window_pattern(const ConfigKeys& keys, int64_t layers) {
  const bool is_list = !keys.missing(kWindowPattern) && keys.at(kWindowPattern).is_array();
  std::vector<bool> windows;
  if (!is_list) {
    const int64_t period = keys.whole(kWindowPattern, kGemmaPeriod);
    require(period >= 0, "{}: {}: expected 0 or more, got {}", keys.what(), kWindowPattern, period);
    for (int64_t i = 0; i < layers; ++i) {
      windows.push_back(period == 0 || (i + 1) % period != 0);
    }
    return windows;
  }
  for (const Json& of_layer : keys.at(kWindowPattern)) {
    require(of_layer.is_boolean() || of_layer.is_number_integer(),
            "{}: {}: expected a list of true and false", keys.what(), kWindowPattern);
    windows.push_back(of_layer.is_boolean() ? of_layer.get<bool>() : of_layer != 0);
  }
  require(std::ssize(windows) == layers, "{}: {} has {} entries, but block_count is {}",
          keys.what(), kWindowPattern, windows.size(), layers);
  return windows;
}

void read_gguf_gemma3(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  keys.only("expert_count", 0);
  read_gguf_heads(file, keys, model);
  const auto layers = model["layers"].get<int64_t>(), width = model["width"].get<int64_t>();
  model["grouped_query"] = {
      {"qk_norm", true},
      {"score_scale", gemma_score_scale(layers, width, model["heads"], model["head_width"])}};
  model["activation"] = {{"type", "gelu_tanh"}};
  model["output_norm"] = true;
  model["embedding_scale"] = std::sqrt(static_cast<double>(width));
  const int64_t window = keys.whole(kGgufWindow, 0);
  if (window == 0) return;
  const double theta = keys.number(kWindowTheta, kWindowThetaOfNone);
  // A recipe's 0 stands for the other layers'.
  require(theta > 0, "{}: {}: expected more than 0, got {}", keys.what(), kWindowTheta, theta);
  std::vector<std::string> kinds;
  for (const bool has_window : read_window_pattern(keys, layers)) {
    kinds.emplace_back(has_window ? kSlidingWindow : kGroupedQuery);
  }
  model["attention"] = kinds;
  model["sliding_window"] = {{"window", window}, {"rope_theta", theta}};
  require(model["rope_scaling"]["type"] != "yarn",
          "{}: rope.scaling.type yarn with a sliding window: attnres does not compute it",
          keys.what());
}

}  // namespace

void write_gguf_heads(const ModelConfig& config, GgufKeys& keys) {
  keys.add("attention.head_count_kv", config.kv_heads);
  keys.add("attention.key_length", config.head_width);
  keys.add("attention.value_length", config.head_width);
  keys.add("rope.dimension_count", config.head_width);
  write_gguf_rope(config, usual_yarn_magnitude(config.rope_scaling.factor), keys);
}

void read_gguf_heads(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  const auto heads = model["heads"].get<int64_t>(), width = model["width"].get<int64_t>();
  require(heads >= 1, "{}: attention.head_count: expected 1 or more, got {}", keys.what(), heads);
  require(width >= heads,
          "{}: embedding_length: expected {} or more (attention.head_count), got {}", keys.what(),
          heads, width);
  const int64_t head_width = keys.positive("attention.key_length", width / heads);
  const int64_t kv_heads = keys.positive("attention.head_count_kv", heads);
  check_heads(file, keys, heads, kv_heads, head_width);
  refuse_other_llamas(keys);
  model["head_width"] = head_width;
  model["kv_heads"] = kv_heads;
  const GgufRope rope = read_gguf_rope(file, keys, head_width);
  model["rope_theta"] = rope.theta;
  const double magnitude = rope.attn_factor * usual_yarn_magnitude(rope.scaling.factor);
  model["rope_scaling"] = write_config(with_magnitude(rope.scaling, magnitude));
}

std::vector<GgufLayout> gguf_llama_layouts() {
  return {{.architecture = GgufArchitecture::llama,
           .name = "llama",
           .check = check_llama,
           .write = write_llama,
           .read = read_llama_or_mixtral},
          {.architecture = GgufArchitecture::qwen2,
           .name = "qwen2",
           .check = check_qwen2,
           .write = write_gguf_heads,
           .read =
               [](const GgufFile& file, const ConfigKeys& keys, Json& model) {
                 read_without_windows(file, keys, model);
                 model["grouped_query"]["qkv_bias"] = true;
               }},
          {.architecture = GgufArchitecture::qwen3,
           .name = "qwen3",
           .check = [](const ModelConfig& config) { check_without_windows(config, "qwen3"); },
           .write = write_gguf_heads,
           .read =
               [](const GgufFile& file, const ConfigKeys& keys, Json& model) {
                 read_without_windows(file, keys, model);
                 model["grouped_query"]["qk_norm"] = true;
               }},
          {.architecture = GgufArchitecture::smollm3,
           .name = "smollm3",
           .check = check_smollm3,
           .write = write_gguf_heads,
           .read = read_gguf_smollm3},
          {.architecture = GgufArchitecture::gemma3,
           .name = "gemma3",
           .check = check_gemma3,
           .write = write_gguf_gemma3,
           .read = read_gguf_gemma3}};
}

}  // namespace attnres
