#include "attnres/formats/kimi_config_json.h"

#include <algorithm>

#include "attnres/formats/architectures.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/config.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

Json common(const ModelConfig& model) {
  const auto& latent = model.settings<LatentAttentionSettings>();
  const auto& experts = model.settings<ExpertsSettings>();
  Json q_rank;  // null: the query map has full rank
  if (latent.q_rank > 0) q_rank = latent.q_rank;
  return {{"hidden_size", model.width},
          {"intermediate_size", model.ffn_width},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.heads},
          {"rms_norm_eps", model.norm_eps},
          {"initializer_range", model.init_std},
          {"kv_lora_rank", latent.kv_rank},
          {"q_lora_rank", q_rank},
          {"qk_nope_head_dim", latent.key_width},
          {"qk_rope_head_dim", latent.shared_key_width},
          {"v_head_dim", latent.value_width},
          {"mla_use_nope", true},
          {"num_experts", experts.count},
          {"num_experts_per_token", experts.chosen},
          {"num_shared_experts", experts.shared},
          {"moe_intermediate_size", experts.width},
          {"moe_router_activation_func", "sigmoid"},
          {"moe_renormalize", experts.renormalize},
          {"routed_scaling_factor", experts.scaling},
          {"first_k_dense_replace", std::min(experts.dense_layers, model.layers)},
          {"moe_layer_freq", 1},
          {"use_grouped_topk", true},
          {"num_expert_group", experts.groups},
          {"topk_group", experts.chosen_groups},
          {"use_cache", true}};
}

// Layers of a kind, counted from 1.
Json layers_of(const ModelConfig& model, const char* kind) {
  Json layers = Json::array();
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (model.attention_of(layer) == kind) layers.push_back(layer + 1);
  }
  return layers;
}

Json linear_attention(const ModelConfig& model) {
  const auto& delta = model.settings<DeltaAttentionSettings>();
  return {{"num_heads", delta.heads},
          {"head_dim", delta.head_width},
          {"short_conv_kernel_size", delta.conv_width},
          {"kda_layers", layers_of(model, kDelta)},
          {"full_attn_layers", layers_of(model, kLatent)}};
}

// By layer_types, or by the two lists of linear_attn_config.
std::vector<std::string> read_kinds(const ConfigKeys& keys, int64_t layers) {
  std::vector<std::string> kinds;
  if (!keys.missing("layer_types")) {
    for (const std::string& type : keys.texts("layer_types")) {
      require(type == "linear_attention" || type == "full_attention",
              "{}: layer_types: expected linear_attention or full_attention, got {}", keys.what(),
              one_line(type));
      kinds.push_back(type == "linear_attention" ? kDelta : kLatent);
    }
    require(static_cast<int64_t>(kinds.size()) == layers,
            "{}: layer_types has {} entries, but num_hidden_layers is {}", keys.what(),
            kinds.size(), layers);
    return kinds;
  }
  const ConfigKeys linear = keys.inner("linear_attn_config");
  kinds.resize(layers);
  const auto fill = [&](const char* key, const char* kind) {
    for (const int64_t layer : linear.whole_numbers(key)) {
      require(layer >= 1 && layer <= layers,
              "{}: {}: layer {} is not one of the layers 1 to {} (they are counted from 1)",
              linear.what(), key, layer, layers);
      require(kinds[layer - 1].empty(), "{}: layer {} is listed twice", linear.what(), layer);
      kinds[layer - 1] = kind;
    }
  };
  fill("kda_layers", kDelta);
  fill("full_attn_layers", kLatent);
  const auto none = std::find(kinds.begin(), kinds.end(), "");
  require(none == kinds.end(), "{}: layer {} is in neither kda_layers nor full_attn_layers",
          linear.what(), none - kinds.begin() + 1);
  return kinds;
}

Json read_delta_attention(const ConfigKeys& keys) {
  Json delta;
  if (keys.missing("linear_attn_config")) {
    delta["heads"] = keys.positive("linear_num_heads");
    delta["head_width"] = keys.positive("linear_head_dim");
    delta["conv_width"] = keys.whole("linear_conv_kernel_dim");
    return delta;
  }
  const ConfigKeys linear = keys.inner("linear_attn_config");
  delta["heads"] = linear.positive("num_heads");
  delta["head_width"] = linear.positive("head_dim");
  delta["conv_width"] = linear.whole("short_conv_kernel_size");
  delta["gate_lower_bound"] = linear.number("gate_lower_bound", 0);
  delta["output_gate"] = linear.flag("use_full_rank_gate", false) ? "full_rank" : "low_rank";
  return delta;
}

Json read_latent_attention(const ConfigKeys& keys) {
  Json latent;
  latent["kv_rank"] = keys.positive("kv_lora_rank");
  latent["q_rank"] = keys.positive("q_lora_rank", 0);
  latent["key_width"] = keys.positive("qk_nope_head_dim");
  latent["shared_key_width"] = keys.positive("qk_rope_head_dim");
  latent["value_width"] = keys.positive("v_head_dim");
  latent["output_gate"] = keys.flag("mla_use_output_gate", false);
  return latent;
}

// Layers at the start whose feed-forward is dense.
int64_t read_dense_layers(const ConfigKeys& keys, int64_t layers) {
  keys.only("moe_layer_freq", 1);
  if (keys.missing("mlp_layer_types")) return keys.whole("first_k_dense_replace", 1);
  const std::vector<std::string> types = keys.texts("mlp_layer_types");
  require(static_cast<int64_t>(types.size()) == layers,
          "{}: mlp_layer_types has {} entries, but num_hidden_layers is {}", keys.what(),
          types.size(), layers);
  const auto sparse = std::find(types.begin(), types.end(), "sparse");
  require(std::all_of(types.begin(), sparse, [](const auto& type) { return type == "dense"; }) &&
              std::all_of(sparse, types.end(), [](const auto& type) { return type == "sparse"; }),
          "{}: mlp_layer_types: expected dense layers, then sparse ones", keys.what());
  return sparse - types.begin();
}

Json read_experts(const ConfigKeys& keys, int64_t layers) {
  if (keys.missing("num_experts")) return Json::object();
  keys.only("moe_router_activation_func", "sigmoid");
  const bool latent = !keys.missing("routed_expert_hidden_size");
  Json experts;
  experts["groups"] = keys.whole("num_expert_group", 1);
  experts["chosen_groups"] = keys.whole("topk_group", 1);
  experts["latent_norm"] = !latent || keys.flag("latent_moe_use_norm", true);
  experts["count"] = keys.positive("num_experts");
  experts["chosen"] = keys.whole("num_experts_per_token");
  experts["width"] = keys.positive("moe_intermediate_size");
  experts["shared"] = keys.whole("num_shared_experts", 0);
  experts["dense_layers"] = read_dense_layers(keys, layers);
  experts["scaling"] = keys.number("routed_scaling_factor", 1);
  experts["renormalize"] = keys.flag("moe_renormalize", true);
  experts["latent_width"] = latent ? keys.positive("routed_expert_hidden_size") : 0;
  return experts;
}

// In sublayers. A block may be larger than the model.
int64_t read_block_size(const ConfigKeys& keys, int64_t layers) {
  const int64_t block = keys.whole("attn_res_block_size");
  require(block >= 1, "{}: attn_res_block_size: expected 1 or more (layers) or null, got {}",
          keys.what(), block);
  return 2 * std::min(block, layers);
}

Json read_activation(const ConfigKeys& keys) {
  const std::string type = keys.missing("hidden_act") ? "silu" : keys.text("hidden_act");
  require(type == "silu" || type == "situ",
          "{}: hidden_act is {}, but attnres computes only silu and situ", keys.what(),
          one_line(type));
  if (type == "silu") return {{"type", type}};
  Json situ = {{"type", type}};
  situ["beta"] = keys.number("activation_situ_beta", 1);
  situ["linear_beta"] = keys.number("activation_situ_linear_beta", 0);
  return situ;
}

}  // namespace

Json to_kimi_linear_json(const ModelConfig& model) {
  Json json = {{"architectures", Json::array({"KimiLinearForCausalLM"})},
               {"model_type", "kimi_linear"}};
  json.update(common(model));
  json["hidden_act"] = "silu";
  // What these programs ask for without a use of it, or have defaults for that do not fit.
  json["head_dim"] = model.width / model.heads;
  json["rope_theta"] = model.rope_theta;
  json["pad_token_id"] = nullptr;
  json["linear_attn_config"] = linear_attention(model);
  return json;
}

Json to_kimi_k3_text_json(const ModelConfig& model) {
  Json json = common(model);
  json["model_type"] = "kimi_linear";
  json["hidden_act"] = model.activation.type;
  if (model.activation.is_situ()) {
    json["activation_situ_beta"] = model.activation.beta;
    if (model.activation.linear_beta > 0) {
      json["activation_situ_linear_beta"] = model.activation.linear_beta;
    }
  }
  const int64_t block = layers_in_block(model);
  json["attn_res_block_size"] = block > 0 ? Json(block) : Json(nullptr);
  json["mla_use_output_gate"] = model.settings<LatentAttentionSettings>().output_gate;
  const auto& experts = model.settings<ExpertsSettings>();
  if (experts.latent_width > 0) {
    json["routed_expert_hidden_size"] = experts.latent_width;
    json["latent_moe_use_norm"] = experts.latent_norm;
  }
  const auto& delta = model.settings<DeltaAttentionSettings>();
  Json linear = linear_attention(model);
  linear["use_full_rank_gate"] = delta.has_full_rank_gate();
  if (delta.gate_lower_bound < 0) {
    linear["gate_lower_bound"] = delta.gate_lower_bound;
  }
  json["linear_attn_config"] = linear;
  return json;
}

ModelConfig from_kimi_json(const ConfigKeys& keys) {
  const ModelConfig defaults;
  const int64_t layers = read_layer_count(keys);
  keys.only("attention_bias", false);
  keys.only("mla_use_nope", true);
  // What may throw comes before the nested list below: GCC 12 unwinds an unfinished one wrongly.
  const int64_t heads = keys.whole("num_attention_heads"), width = keys.whole("hidden_size");
  const int64_t ffn_width = keys.positive("intermediate_size");
  const std::vector<std::string> kinds = read_kinds(keys, layers);
  const Json delta = read_delta_attention(keys), latent = read_latent_attention(keys);
  const Json experts = read_experts(keys, layers), activation = read_activation(keys);
  const double norm_eps = keys.number("rms_norm_eps", defaults.norm_eps);
  const double init_std = keys.number("initializer_range", defaults.init_std);
  const bool tied = keys.flag("tie_word_embeddings", false);
  Json mixing = {{"type", "residual"}};
  if (!keys.missing("attn_res_block_size")) {
    const int64_t block_size = read_block_size(keys, layers);
    mixing = {{"type", "block_attn_res"}, {"block_size", block_size}};
  }
  const Json model = {{"layers", layers},         {"width", width},
                      {"heads", heads},           {"kv_heads", heads},
                      {"ffn_width", ffn_width},   {"attention", kinds},
                      {"delta_attention", delta}, {"latent_attention", latent},
                      {"experts", experts},       {"activation", activation},
                      {"norm_eps", norm_eps},     {"init_std", init_std},
                      {"tie_embeddings", tied},   {"depth_mixing", mixing}};
  const bool is_listed = !keys.missing("layer_types");
  const bool is_nested = !keys.missing("linear_attn_config");
  FileNames names = with_common_names(
      {{"experts.count", "num_experts"},
       {"experts.chosen", "num_experts_per_token"},
       {"experts.shared", "num_shared_experts"},
       {"experts.groups", "num_expert_group"},
       {"experts.latent_width", "routed_expert_hidden_size"},
       {"delta_attention.heads", is_nested ? "linear_attn_config.num_heads" : "linear_num_heads"},
       {"delta_attention.head_width",
        is_nested ? "linear_attn_config.head_dim" : "linear_head_dim"},
       {"delta_attention.conv_width",
        is_nested ? "linear_attn_config.short_conv_kernel_size" : "linear_conv_kernel_dim"},
       {"delta_attention.gate_lower_bound", "linear_attn_config.gate_lower_bound"},
       {"delta_attention", is_listed ? "layer_types" : "linear_attn_config.kda_layers"},
       {"activation.beta", "activation_situ_beta"},
       {"activation.linear_beta", "activation_situ_linear_beta"}});
  // After the keys of its settings.
  names.emplace_back("latent_attention",
                     is_listed ? "layer_types" : "linear_attn_config.full_attn_layers");
  return read_stored_model(model, keys, "as a model of attnres", names);
}

}  // namespace attnres
