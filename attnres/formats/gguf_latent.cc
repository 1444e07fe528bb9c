#include "attnres/formats/gguf_latent.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/formats/architectures.h"
#include "attnres/formats/gguf_parts.h"
#include "attnres/formats/gguf_rope.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr const char* kLogMultiplier = "rope.scaling.yarn_log_multiplier";

void write_latent(const ModelConfig& config, GgufKeys& keys) {
  const LatentAttentionSettings& latent = config.settings<LatentAttentionSettings>();
  keys.add("attention.kv_lora_rank", latent.kv_rank);
  keys.add("attention.key_length", latent.kv_rank + latent.shared_key_width);
  keys.add("attention.value_length", latent.kv_rank);
  keys.add("attention.key_length_mla", latent.key_width + latent.shared_key_width);
  keys.add("attention.value_length_mla", latent.value_width);
  keys.add("rope.dimension_count", latent.shared_key_width);
}

Json read_gguf_latent(const ConfigKeys& keys) {
  const int64_t shared = keys.whole("rope.dimension_count");
  const int64_t key = keys.whole("attention.key_length_mla");
  require(
      shared >= 1 && key > shared,
      "{}: attention.key_length_mla {} and rope.dimension_count {}: expected a longer one and a "
      "shorter one",
      keys.what(), key, shared);
  Json latent;
  latent["kv_rank"] = keys.positive("attention.kv_lora_rank");
  latent["q_rank"] = keys.whole("attention.q_lora_rank", 0);
  latent["key_width"] = key - shared;
  latent["shared_key_width"] = shared;
  latent["value_width"] = keys.positive("attention.value_length_mla");
  return latent;
}

void write_experts(const ModelConfig& config, GgufKeys& keys) {
  const ExpertsSettings& experts = config.settings<ExpertsSettings>();
  const bool any = experts.count > 0;
  keys.add("leading_dense_block_count", any ? experts.dense_layers : config.layers);
  keys.add("expert_count", experts.count);
  keys.add("expert_used_count", any ? experts.chosen : 0);
  keys.add("expert_shared_count", any ? experts.shared : 0);
  keys.add("expert_feed_forward_length", any ? experts.width : 0);
  keys.add_value("expert_gating_func", kGgufSigmoidRouting);
  keys.add("expert_weights_scale", experts.scaling);
  keys.add_value("expert_weights_norm", experts.renormalize);
}

// Whether any of so many layers has.
bool has_gguf_experts(const ConfigKeys& keys, int64_t layers) {
  const int64_t count = keys.whole("expert_count", 0);
  const int64_t dense = keys.whole("leading_dense_block_count", 0);
  require(count != 0 || keys.missing("expert_count") || dense >= layers,
          "{}: expert_count is 0, but of its {} layers only {} are without experts "
          "(leading_dense_block_count)",
          keys.what(), layers, dense);
  return count != 0;
}

Json read_gguf_experts(const ConfigKeys& keys) {
  keys.only("expert_gating_func", kGgufSigmoidRouting);
  Json experts;
  experts["count"] = keys.whole("expert_count");
  experts["chosen"] = keys.whole("expert_used_count");
  experts["width"] = keys.positive("expert_feed_forward_length");
  experts["shared"] = keys.whole("expert_shared_count", 0);
  experts["dense_layers"] = keys.whole("leading_dense_block_count", 0);
  const double scale = keys.number("expert_weights_scale", 0);
  experts["scaling"] = scale == 0 ? 1 : scale;  // as llama.cpp takes it
  return experts;
}

double usual_score_scale(int64_t key_width) {
  return 1 / std::sqrt(static_cast<double>(key_width));
}

void check_deepseek(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  check_gguf_rope(scaling, /*computes_llama3=*/false, "deepseek2");
  const bool is_yarn = scaling.type == "yarn" && scaling.factor > 1;
  require(is_yarn || scaling.is_none(),
          "model.rope_scaling.type {} with a factor of {}: llama.cpp computes deepseek2 with none, "
          "or with yarn and a factor above 1; write safetensors",
          scaling.type, scaling.factor);
  const auto& latent = config.settings<LatentAttentionSettings>();
  require(is_yarn || latent.score_scale == 0,
          "model.latent_attention.score_scale {}: llama.cpp scales deepseek2's scores with yarn "
          "only; write safetensors",
          latent.score_scale);
  const bool is_lite = config.layers == 26 || config.layers == 27;
  require(!is_lite || latent.q_rank == 0,
          "model.latent_attention.q_rank {}: llama.cpp takes deepseek2 of {} layers for one "
          "without it; write safetensors",
          latent.q_rank, config.layers);
}

void write_deepseek(const ModelConfig& config, GgufKeys& keys) {
  const auto& latent = config.settings<LatentAttentionSettings>();
  keys.add("attention.head_count_kv", int64_t{1});
  keys.add("attention.q_lora_rank", latent.q_rank);  // required, 0 or not
  write_latent(config, keys);
  write_experts(config, keys);
  const ExpertsSettings& experts = config.settings<ExpertsSettings>();
  if (experts.chosen_groups < experts.groups) {
    keys.add("expert_group_count", experts.groups);
    keys.add("expert_group_used_count", experts.chosen_groups);
  }
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.is_none()) return write_gguf_rope(config, 1, keys);
  const double usual = usual_score_scale(latent.key_width + latent.shared_key_width);
  const double scale = latent.score_scale == 0 ? 1 : latent.score_scale / usual;
  const double of_log = std::sqrt(scale) / yarn_magnitude(scaling) - 1;  // 0.1 l ln(factor)
  const bool is_plain = std::abs(of_log) < 1e-9;
  write_gguf_rope(config, is_plain ? usual_yarn_magnitude(scaling.factor) : 1, keys);
  if (!is_plain) keys.add(kLogMultiplier, of_log / std::log(scaling.factor));
}

void read_deepseek_rope(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  Json& latent = model["latent_attention"];
  const auto shared = latent["shared_key_width"].get<int64_t>();
  const GgufRope rope = read_gguf_rope(file, keys, shared);
  model["rope_theta"] = rope.theta;
  if (rope.scaling.is_none()) return;
  require(rope.scaling.type == "yarn", "{}: rope.scaling.type {}: attnres computes none and yarn",
          keys.what(), rope.scaling.type);
  const double of_log = keys.number(kLogMultiplier, 0) * std::log(rope.scaling.factor);
  const double usual = usual_yarn_magnitude(rope.scaling.factor);
  const double magnitude = rope.attn_factor * (of_log == 0 ? usual : 1);
  const double of_scores = magnitude * (1 + of_log);
  model["rope_scaling"] = write_config(with_magnitude(rope.scaling, magnitude));
  const bool is_usual = std::abs(of_scores - 1) < 1e-6;
  const double scale = usual_score_scale(latent["key_width"].get<int64_t>() + shared);
  latent["score_scale"] = is_usual ? 0 : scale * of_scores * of_scores;
}

void read_deepseek(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  keys.only("attention.temperature_scale", 0);
  keys.at("expert_gating_func");  // softmax without it
  model["kv_heads"] = model["heads"];
  model["attention"] = {kLatent};
  model["latent_attention"] = read_gguf_latent(keys);
  model["latent_attention"]["rotary"] = true;
  read_deepseek_rope(file, keys, model);
  keys.at("expert_count");
  if (!has_gguf_experts(keys, model["layers"].get<int64_t>())) return;
  Json& experts = model["experts"] = read_gguf_experts(keys);
  experts["renormalize"] = keys.flag("expert_weights_norm", false);
  const int64_t groups = keys.whole("expert_group_count", 0);
  if (groups <= 1) return;
  experts["groups"] = groups;
  experts["chosen_groups"] = keys.whole("expert_group_used_count");
}

void check_kimi(const ModelConfig& config, const std::string& name) {
  require_in_llama_cpp(name, "output_norm", config.output_norm, false);
  require_in_llama_cpp(name, "embedding_scale", config.embedding_scale, 1);
  require(config.activation.type == "silu" || config.activation.is_situ(),
          "model.activation.type {}: llama.cpp computes silu and situ with these layers; write "
          "safetensors",
          config.activation.type);
  require(
      has_kimi_attention(config),
      "model.attention {}: llama.cpp computes grouped_query in every layer, or some layers of each "
      "of delta and latent, and no other mixture; write safetensors",
      Json(config.attention).dump());
  const auto& delta = config.settings<DeltaAttentionSettings>();
  const auto& latent = config.settings<LatentAttentionSettings>();
  const auto& experts = config.settings<ExpertsSettings>();
  require(delta.heads == config.heads,
          "model.delta_attention.heads {}: llama.cpp computes as many as latent attention has, {}",
          delta.heads, config.heads);
  require_in_llama_cpp(name, "experts.scores", experts.scores, "sigmoid");
  require_in_llama_cpp(name, "experts.router_bias", experts.router_bias, false);
  require_in_llama_cpp(name, "experts.bias", experts.bias, false);
  require_in_llama_cpp(name, "experts.groups", experts.groups, 1);
  require_in_llama_cpp(name, "experts.latent_norm", experts.latent_norm, true);
  require_in_llama_cpp(name, "experts.renormalize", experts.renormalize, true);
  require_in_llama_cpp(name, "latent_attention.rotary", latent.rotary, false);
  require_in_llama_cpp(name, "latent_attention.score_scale", latent.score_scale, 0);
}

void write_kimi(const ModelConfig& config, GgufKeys& keys) {
  std::vector<int32_t> kv_heads;  // 0 for delta attention; latent attention has one latent
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    kv_heads.push_back(config.attention_of(layer) == kDelta ? 0 : 1);
  }
  keys.add_value("attention.head_count_kv", kv_heads);
  const DeltaAttentionSettings& delta = config.settings<DeltaAttentionSettings>();
  keys.add("ssm.conv_kernel", delta.conv_width);
  keys.add("kda.head_dim", delta.head_width);
  if (delta.gate_lower_bound != 0) keys.add("kda.gate_lower_bound", delta.gate_lower_bound);
  const int64_t q_rank = config.settings<LatentAttentionSettings>().q_rank;
  if (q_rank > 0) keys.add("attention.q_lora_rank", q_rank);
  write_latent(config, keys);
  write_experts(config, keys);
  const ExpertsSettings& experts = config.settings<ExpertsSettings>();
  if (experts.count > 0 && experts.latent_width > 0) {
    keys.add("expert_latent_length", experts.latent_width);
  }
}

void write_k3(const ModelConfig& config, GgufKeys& keys) {
  write_kimi(config, keys);
  const bool situ = config.activation.is_situ();
  keys.add("attn_res.block_size", layers_in_block(config));
  keys.add("activation.situ_beta", situ ? config.activation.beta : kGgufBetaOfSilu);
  keys.add("activation.situ_linear_beta", situ ? config.activation.linear_beta : 0.0);
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
  delta["head_width"] = keys.positive("kda.head_dim");
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

Json read_kimi_experts(const ConfigKeys& keys, int64_t layers) {
  if (!has_gguf_experts(keys, layers)) return Json::object();
  keys.only("expert_weights_norm", true);
  for (const char* groups : {"expert_group_count", "expert_group_used_count"}) {
    if (keys.whole(groups, 0) != 0) keys.only(groups, 1);
  }
  Json experts = read_gguf_experts(keys);
  experts["latent_width"] = keys.whole("expert_latent_length", 0);
  return experts;
}

void read_kimi(const GgufFile& file, const ConfigKeys& keys, bool k3, Json& model) {
  const auto layers = model["layers"].get<int64_t>(), heads = model["heads"].get<int64_t>();
  const std::vector<std::string> kinds = read_attention(keys, layers);
  model["kv_heads"] = heads;
  model["attention"] = kinds;
  model["delta_attention"] = read_gguf_delta(keys, heads, k3);
  model["latent_attention"] = read_gguf_latent(keys);
  model["latent_attention"]["output_gate"] = has_output_gate(file, kinds);
  model["experts"] = read_kimi_experts(keys, layers);
}

// The activation of kimi-k3, which computes SiTU only.
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

void read_k3(const GgufFile& file, const ConfigKeys& keys, Json& model) {
  read_kimi(file, keys, /*k3=*/true, model);
  model["activation"] = read_gguf_activation(keys);
  model["depth_mixing"] = read_gguf_mixing(keys, model["layers"].get<int64_t>());
}

}  // namespace

std::vector<GgufLayout> gguf_latent_layouts() {
  return {{.architecture = GgufArchitecture::deepseek2,
           .name = "deepseek2",
           .check = check_deepseek,
           .write = write_deepseek,
           .read = read_deepseek},
          {.architecture = GgufArchitecture::kimi_linear,
           .name = "kimi-linear",
           .check = [](const ModelConfig& config) { check_kimi(config, "kimi-linear"); },
           .write = write_kimi,
           .read = [](const GgufFile& file, const ConfigKeys& keys,
                      Json& model) { read_kimi(file, keys, /*k3=*/false, model); }},
          {.architecture = GgufArchitecture::kimi_k3,
           .name = "kimi-k3",
           .check = [](const ModelConfig& config) { check_kimi(config, "kimi-k3"); },
           .write = write_k3,
           .read = read_k3}};
}

}  // namespace attnres
