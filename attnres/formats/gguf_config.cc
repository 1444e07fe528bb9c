#include "attnres/formats/gguf_config.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <variant>

#include "attnres/formats/config_keys.h"
#include "attnres/formats/gguf_layouts.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr const char* kTokenEmbedding = "token_embd.weight";
constexpr const char* kOutput = "output.weight";

// 1e-5 of the float32 next to it.
double shortest_decimal(float number) {
  return std::isfinite(number) ? std::stod(fmt::format("{}", number)) : number;
}

Json to_json(const GgufValue& value) {
  return std::visit(
      [](const auto& held) -> Json {
        if constexpr (std::is_same_v<decltype(held), const float&>) {
          return shortest_decimal(held);
        } else {
          return held;
        }
      },
      value);
}

// The keys of the architecture, without its name before them.
Json keys_of(const GgufFile& file, const std::string& name) {
  const std::string prefix = name + ".";
  Json keys = Json::object();
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with(prefix)) keys[key.substr(prefix.size())] = to_json(value);
  }
  return keys;
}

bool is_tied(const GgufFile& file) {
  if (!file.contains(kOutput)) return true;
  if (!file.contains(kTokenEmbedding)) return false;
  const PackedMatrix head = file.stored(kOutput), embedding = file.stored(kTokenEmbedding);
  return head.format == embedding.format && head.bytes.sizes() == embedding.bytes.sizes() &&
         std::memcmp(head.bytes.const_data_ptr(), embedding.bytes.const_data_ptr(),
                     head.bytes.nbytes()) == 0;
}

// All layers, those that predict further tokens among them.
int64_t read_block_count(const GgufFile& file, const ConfigKeys& keys) {
  const int64_t layers = keys.whole("block_count");
  // A layer has tensors of its own: so a file of a few bytes does not ask for many layers.
  require(layers >= 1 && layers <= static_cast<int64_t>(file.names().size()),
          "{}: block_count: {} layers do not fit a file with {} tensors", keys.what(), layers,
          file.names().size());
  return layers;
}

// Those at the end that predict further tokens.
int64_t read_further_layers(const ConfigKeys& keys, int64_t block_count) {
  constexpr const char* kKey = "nextn_predict_layers";
  const int64_t layers = keys.whole(kKey, 0);
  require(layers >= 0 && layers < block_count, "{}: {}: expected 0 to {}, got {}", keys.what(),
          kKey, block_count - 1, layers);
  return layers;
}

// What all architectures have.
Json read_common(const GgufFile& file, const ConfigKeys& keys, int64_t layers) {
  keys.at("attention.layer_norm_rms_epsilon");
  Json model;
  model["layers"] = layers;
  model["width"] = keys.whole("embedding_length");
  model["heads"] = keys.whole("attention.head_count");
  model["ffn_width"] = keys.positive("feed_forward_length");
  model["norm_eps"] = keys.number("attention.layer_norm_rms_epsilon", 0);
  model["tie_embeddings"] = is_tied(file);
  model["depth_mixing"] = {{"type", "residual"}};
  return model;
}

// A token's number; null where the file names none of the model's.
Json token_id(const GgufFile& file, const std::string& name, StoredConfig& stored) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  const GgufValue* value = file.find(key);
  if (value == nullptr) return {};
  return known_ids(to_json(*value), stored.vocab_size, fmt::format("{}: {}", file.path(), key),
                   stored.notes);
}

// The tokens that end a document, a turn or a message; null where the file names none.
Json end_ids(const GgufFile& file, StoredConfig& stored) {
  Json ends = Json::array();
  for (const char* name : {"eos", "eot", "eom"}) {
    const Json id = token_id(file, name, stored);
    if (!id.is_null() && std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
  }
  return ends.size() > 1 ? ends : ends.empty() ? Json() : ends[0];
}

// Of a recipe's keys.
const FileNames& gguf_names() {
  static const FileNames names = {
      {"layers", "block_count"},
      {"width", "embedding_length"},
      {"heads", "attention.head_count"},
      {"kv_heads", "attention.head_count_kv"},
      {"head_width", "attention.key_length"},
      {"ffn_width", "feed_forward_length"},
      {"norm_eps", "attention.layer_norm_rms_epsilon"},
      {"sliding_window.window", "attention.sliding_window"},
      {"sliding_window.rope_theta", "rope.freq_base_swa"},
      {"rope_theta", "rope.freq_base"},
      {"rope_scaling.original_context", "rope.scaling.original_context_length"},
      {"rope_scaling.attention_factor", "rope.scaling.attn_factor"},
      {"rope_scaling", "rope.scaling"},
      {"latent_attention.kv_rank", "attention.kv_lora_rank"},
      {"latent_attention.q_rank", "attention.q_lora_rank"},
      {"latent_attention.key_width", "attention.key_length_mla"},
      {"latent_attention.shared_key_width", "rope.dimension_count"},
      {"latent_attention.value_width", "attention.value_length_mla"},
      {"latent_attention.score_scale", "rope.scaling.yarn_log_multiplier"},
      {"latent_attention", "attention.head_count_kv"},
      {"delta_attention.heads", "attention.head_count"},
      {"delta_attention.head_width", "kda.head_dim"},
      {"delta_attention.conv_width", "ssm.conv_kernel"},
      {"delta_attention.gate_lower_bound", "kda.gate_lower_bound"},
      {"delta_attention", "attention.head_count_kv"},  // which has the kind of each layer
      {"experts.count", "expert_count"},
      {"experts.chosen", "expert_used_count"},
      {"experts.width", "expert_feed_forward_length"},
      {"experts.shared", "expert_shared_count"},
      {"experts.dense_layers", "leading_dense_block_count"},
      {"experts.scaling", "expert_weights_scale"},
      {"experts.latent_width", "expert_latent_length"},
      {"experts.groups", "expert_group_count"},
      {"experts.chosen_groups", "expert_group_used_count"},
      {"activation.beta", "activation.situ_beta"},
      {"activation.linear_beta", "activation.situ_linear_beta"},
      {"depth_mixing.block_size", "attn_res.block_size"}};
  return names;
}

// Rows of the token embedding; 0 without one.
int64_t embedded_tokens(const GgufFile& file) {
  return file.contains(kTokenEmbedding) ? file.info(kTokenEmbedding).shape.front() : 0;
}

}  // namespace

GgufConfig read_gguf_config(const GgufFile& file) {
  GgufConfig config;
  const GgufLayout& layout = gguf_layout(file);
  config.architecture = layout.architecture;
  const Json json = keys_of(file, layout.name);
  const ConfigKeys keys(json, fmt::format("{}: {}", file.path(), layout.name));
  const int64_t layers = read_block_count(file, keys);
  config.stored.further_layers = read_further_layers(keys, layers);
  Json model = read_common(file, keys, layers - config.stored.further_layers);
  layout.read(file, keys, model);
  config.stored.model = read_stored_model(model, keys, "as a model of attnres", gguf_names());
  config.stored.vocab_size = read_vocabulary(keys, embedded_tokens(file));
  config.stored.context = read_context(keys, "context_length");
  if (const int64_t further = config.stored.further_layers; further > 0) {
    config.stored.notes.push_back(
        fmt::format("{}: of its {} the last {}, which predict further tokens, are not read",
                    file.path(), counted(layers, "layer"), further));
  }
  config.stored.document_ids.begin = token_id(file, "bos", config.stored);
  config.stored.document_ids.end = end_ids(file, config.stored);
  return config;
}

}  // namespace attnres
