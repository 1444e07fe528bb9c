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
#include "attnres/formats/gguf_parts.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr const char* kTokenEmbedding = "token_embd.weight";
constexpr const char* kOutput = "output.weight";

GgufArchitecture read_architecture(const GgufFile& file) {
  const std::string name = file.text("general.architecture", "");
  for (const auto architecture :
       {GgufArchitecture::llama, GgufArchitecture::kimi_linear, GgufArchitecture::kimi_k3}) {
    if (name == gguf_name(architecture)) return architecture;
  }
  fail("{}: general.architecture is '{}'; attnres reads llama, kimi-linear and kimi-k3",
       file.path(), one_line(name));
}

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
Json keys_of(const GgufFile& file, GgufArchitecture architecture) {
  const std::string prefix = fmt::format("{}.", gguf_name(architecture));
  Json keys = Json::object();
  for (const auto& [key, value] : file.metadata()) {
    if (key.starts_with(prefix)) keys[key.substr(prefix.size())] = to_json(value);
  }
  return keys;
}

bool is_tied(const GgufFile& file) {
  if (!file.contains(kOutput)) return true;
  if (!file.contains(kTokenEmbedding)) return false;
  const PackedWeight head = file.stored(kOutput), embedding = file.stored(kTokenEmbedding);
  return head.format == embedding.format && head.bytes.sizes() == embedding.bytes.sizes() &&
         std::memcmp(head.bytes.const_data_ptr(), embedding.bytes.const_data_ptr(),
                     head.bytes.nbytes()) == 0;
}

// What all architectures have.
Json read_common(const GgufFile& file, const ConfigKeys& keys) {
  const int64_t layers = keys.whole("block_count");
  // A layer has tensors of its own: so a file of a few bytes does not ask for many layers.
  require(layers >= 1 && layers <= static_cast<int64_t>(file.names().size()),
          "{}: block_count: {} layers do not fit a file with {} tensors", keys.what(), layers,
          file.names().size());
  keys.at("attention.layer_norm_rms_epsilon");
  Json model;
  model["layers"] = layers;
  model["width"] = keys.whole("embedding_length");
  model["heads"] = keys.whole("attention.head_count");
  model["ffn_width"] = keys.whole("feed_forward_length");
  model["norm_eps"] = keys.number("attention.layer_norm_rms_epsilon", 0);
  model["tie_embeddings"] = is_tied(file);
  model["depth_mixing"] = {{"type", "residual"}};
  return model;
}

void refuse_other_llamas(const ConfigKeys& keys, int64_t head_width) {
  keys.only("rope.scaling.type", "none");
  for (const char* factor : {"rope.scaling.factor", "rope.scale_linear"}) {
    if (keys.number(factor, 1) != 1) keys.only(factor, 1);
  }
  for (const char* of_all :
       {"attention.key_length", "attention.value_length", "rope.dimension_count"}) {
    keys.only(of_all, head_width);
  }
  for (const char* absent : {"expert_count", "attention.sliding_window"}) keys.only(absent, 0);
  keys.only("attention.causal", true);
  keys.only("use_parallel_residual", false);
  for (const char* changing :
       {"attention.clamp_kqv", "attention.max_alibi_bias", "attention.scale", "logit_scale",
        "residual_scale", "embedding_scale", "attn_logit_softcapping", "final_logit_softcapping"}) {
    require(keys.missing(changing), "{}: {}: attnres does not compute models that have it",
            keys.what(), changing);
  }
}

Json read_llama(const GgufFile& file, const ConfigKeys& keys) {
  Json model = read_common(file, keys);
  const auto heads = model["heads"].get<int64_t>(), width = model["width"].get<int64_t>();
  require(heads >= 1, "{}: attention.head_count: expected 1 or more, got {}", keys.what(), heads);
  model["head_width"] = keys.whole("attention.key_length", width / heads);
  refuse_other_llamas(keys, model["head_width"].get<int64_t>());
  model["kv_heads"] = keys.whole("attention.head_count_kv", heads);
  model["rope_theta"] = keys.number("rope.freq_base", ModelConfig().rope_theta);
  return model;
}

// Layer by layer: delta attention has no heads of keys and values.
std::vector<std::string> read_attention(const ConfigKeys& keys, int64_t layers) {
  std::vector<std::string> kinds;
  for (const int64_t kv_heads : keys.whole_numbers("attention.head_count_kv")) {
    kinds.push_back(kv_heads == 0 ? kDelta : kLatent);
  }
  require(static_cast<int64_t>(kinds.size()) == layers,
          "{}: attention.head_count_kv has {} entries, but block_count is {}", keys.what(),
          kinds.size(), layers);
  return kinds;
}

Json read_gguf_delta(const ConfigKeys& keys, int64_t heads, bool k3) {
  const double bound = keys.number("kda.gate_lower_bound", 0);
  require(k3 || bound == 0, "{}: kda.gate_lower_bound: only kimi-k3 has it", keys.what());
  Json delta;
  delta["heads"] = heads;
  delta["head_width"] = keys.whole("kda.head_dim");
  delta["conv_width"] = keys.whole("ssm.conv_kernel");
  delta["gate_lower_bound"] = bound;
  delta["output_gate"] = k3 ? "full_rank" : "low_rank";
  return delta;
}

// A gate that some layers of latent attention have and others have not is found where tensors are.
bool has_output_gate(const GgufFile& file, const std::vector<std::string>& kinds) {
  const auto latent = std::find(kinds.begin(), kinds.end(), kLatent);
  return latent != kinds.end() &&
         file.contains(fmt::format("blk.{}.attn_gate.weight", latent - kinds.begin()));
}

Json read_gguf_latent(const GgufFile& file, const ConfigKeys& keys,
                      const std::vector<std::string>& kinds) {
  const int64_t shared = keys.whole("rope.dimension_count");
  const int64_t key = keys.whole("attention.key_length_mla");
  require(
      shared >= 1 && key > shared,
      "{}: attention.key_length_mla {} and rope.dimension_count {}: expected a longer one and a "
      "shorter one",
      keys.what(), key, shared);
  Json latent;
  latent["kv_rank"] = keys.whole("attention.kv_lora_rank");
  latent["q_rank"] = keys.whole("attention.q_lora_rank", 0);
  latent["key_width"] = key - shared;
  latent["shared_key_width"] = shared;
  latent["value_width"] = keys.whole("attention.value_length_mla");
  latent["output_gate"] = has_output_gate(file, kinds);
  return latent;
}

Json read_gguf_experts(const ConfigKeys& keys) {
  if (keys.whole("expert_count", 0) == 0) return Json::object();
  keys.only("expert_gating_func", kGgufSigmoidRouting);
  keys.only("expert_weights_norm", true);
  for (const char* groups : {"expert_group_count", "expert_group_used_count"}) {
    if (keys.whole(groups, 0) != 0) keys.only(groups, 1);
  }
  Json experts;
  experts["count"] = keys.whole("expert_count");
  experts["chosen"] = keys.whole("expert_used_count");
  experts["width"] = keys.whole("expert_feed_forward_length");
  experts["shared"] = keys.whole("expert_shared_count", 0);
  experts["dense_layers"] = keys.whole("leading_dense_block_count", 0);
  experts["scaling"] = keys.number("expert_weights_scale", 1);
  experts["latent_width"] = keys.whole("expert_latent_length", 0);
  return experts;
}

// Of kimi-k3, which computes SiTU only.
Json read_gguf_activation(const ConfigKeys& keys) {
  keys.at("activation.situ_beta");
  const double beta = keys.number("activation.situ_beta", 0);
  const double linear_beta = keys.number("activation.situ_linear_beta", 0);
  if (beta == kGgufBetaOfSilu && linear_beta <= 0) return {{"type", "silu"}};
  return {{"type", "situ"}, {"beta", beta}, {"linear_beta", linear_beta}};
}

// In sublayers. A block may be larger than the model.
Json read_gguf_mixing(const ConfigKeys& keys, int64_t layers) {
  const int64_t block = keys.whole("attn_res.block_size");
  require(block >= 0, "{}: attn_res.block_size: expected 0 or more (layers), got {}", keys.what(),
          block);
  if (block == 0) return {{"type", "residual"}};
  return {{"type", "block_attn_res"}, {"block_size", 2 * std::min(block, layers)}};
}

Json read_kimi(const GgufFile& file, const ConfigKeys& keys, bool k3) {
  Json model = read_common(file, keys);
  const auto layers = model["layers"].get<int64_t>(), heads = model["heads"].get<int64_t>();
  const std::vector<std::string> kinds = read_attention(keys, layers);
  model["kv_heads"] = heads;
  model["attention"] = kinds;
  model["delta_attention"] = read_gguf_delta(keys, heads, k3);
  model["latent_attention"] = read_gguf_latent(file, keys, kinds);
  model["experts"] = read_gguf_experts(keys);
  if (!k3) return model;
  model["activation"] = read_gguf_activation(keys);
  model["depth_mixing"] = read_gguf_mixing(keys, layers);
  return model;
}

// A token's number; null where the file names none.
Json token_id(const GgufFile& file, const char* key) {
  const GgufValue* value = file.find(key);
  const auto* id = value == nullptr ? nullptr : std::get_if<uint32_t>(value);
  return id == nullptr ? Json() : Json(*id);
}

// Rows of the token embedding; 0 without one.
int64_t embedded_tokens(const GgufFile& file) {
  return file.contains(kTokenEmbedding) ? file.info(kTokenEmbedding).shape.front() : 0;
}

}  // namespace

GgufConfig read_gguf_config(const GgufFile& file) {
  GgufConfig config;
  config.architecture = read_architecture(file);
  const Json json = keys_of(file, config.architecture);
  const ConfigKeys keys(json, fmt::format("{}: {}", file.path(), gguf_name(config.architecture)));
  const bool k3 = config.architecture == GgufArchitecture::kimi_k3;
  const Json model = config.architecture == GgufArchitecture::llama ? read_llama(file, keys)
                                                                    : read_kimi(file, keys, k3);
  config.stored.model = read_stored_model(model, keys, "as a model of attnres");
  config.stored.vocab_size = keys.whole("vocab_size", embedded_tokens(file));
  require(config.stored.vocab_size >= 1 && config.stored.vocab_size <= INT32_MAX,
          "{}: vocab_size: expected 1 to {}, got {}", keys.what(), INT32_MAX,
          config.stored.vocab_size);
  config.stored.context = keys.whole("context_length");
  require(config.stored.context >= 2, "{}: context_length: expected 2 or more, got {}", keys.what(),
          config.stored.context);
  config.stored.document_ids.begin = token_id(file, "tokenizer.ggml.bos_token_id");
  config.stored.document_ids.end = token_id(file, "tokenizer.ggml.eos_token_id");
  return config;
}

}  // namespace attnres
