#include "attnres/formats/deepseek_config_json.h"

#include <algorithm>
#include <cmath>

#include "attnres/formats/rope_json.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/config.h"

namespace attnres {
namespace {

// Scores of YaRN are multiplied by (0.1 mscale_all_dim ln factor + 1)^2, whatever cosine and sine
// are.
double usual_score_scale(const LatentAttentionSettings& settings) {
  // A file's numbers, whose sum may be beyond 64 bits before they are checked.
  return 1 / std::sqrt(static_cast<double>(settings.key_width) +
                       static_cast<double>(settings.shared_key_width));
}

double read_score_scale(const ConfigKeys& keys, const StoredRope& rope, double usual) {
  if (rope.scaling.is_none()) return 0;
  const double mscale = keys.inner(rope_key(keys)).number("mscale_all_dim", 0);
  require(mscale >= 0, "{}: mscale_all_dim: expected 0 or more, got {}", keys.what(), mscale);
  if (mscale == 0 || rope.scaling.factor <= 1) return 0;
  const double factor = 0.1 * mscale * std::log(rope.scaling.factor) + 1;
  return usual * factor * factor;
}

double mscale_all_dim(const ModelConfig& model) {
  const LatentAttentionSettings& settings = model.settings<LatentAttentionSettings>();
  const double factor = std::sqrt(settings.score_scale / usual_score_scale(settings));
  return (factor - 1) / (0.1 * std::log(model.rope_scaling.factor));
}

Json read_latent(const ConfigKeys& keys, const StoredRope& rope) {
  LatentAttentionSettings settings = {.kv_rank = keys.positive("kv_lora_rank"),
                                      .q_rank = keys.positive("q_lora_rank", 0),
                                      .key_width = keys.positive("qk_nope_head_dim"),
                                      .shared_key_width = keys.positive("qk_rope_head_dim"),
                                      .value_width = keys.positive("v_head_dim"),
                                      .rotary = true};
  settings.score_scale = read_score_scale(keys, rope, usual_score_scale(settings));
  return write_config(settings);
}

Json read_experts_of_deepseek(const ConfigKeys& keys) {
  keys.only("scoring_func", "sigmoid");
  keys.only("topk_method", "noaux_tc");
  keys.only("moe_layer_freq", 1);
  Json experts;
  experts["count"] = keys.positive("n_routed_experts");
  experts["chosen"] = keys.whole("num_experts_per_tok");
  experts["width"] = keys.positive("moe_intermediate_size");
  experts["shared"] = keys.whole("n_shared_experts");
  experts["dense_layers"] = keys.whole("first_k_dense_replace", 3);
  experts["scaling"] = keys.number("routed_scaling_factor", 2.5);
  experts["renormalize"] = keys.flag("norm_topk_prob", true);
  experts["groups"] = keys.whole("n_group", 8);
  experts["chosen_groups"] = keys.whole("topk_group", 4);
  return experts;
}

}  // namespace

Json to_deepseek_json(const ModelConfig& model) {
  const LatentAttentionSettings& latent = model.settings<LatentAttentionSettings>();
  const ExpertsSettings& experts = model.settings<ExpertsSettings>();
  Json rope = rope_parameters_json({model.rope_theta, model.rope_scaling});
  if (latent.score_scale > 0) rope["mscale_all_dim"] = mscale_all_dim(model);
  Json json = {{"architectures", Json::array({"DeepseekV3ForCausalLM"})},
               {"model_type", "deepseek_v3"},
               {"hidden_size", model.width},
               {"intermediate_size", model.ffn_width},
               {"num_hidden_layers", model.layers},
               {"num_attention_heads", model.heads},
               {"num_key_value_heads", model.heads},
               {"hidden_act", "silu"},
               {"attention_bias", false},
               {"rms_norm_eps", model.norm_eps},
               {"initializer_range", model.init_std},
               {"rope_theta", model.rope_theta},
               {"rope_parameters", rope},
               {"rope_interleave", true},
               {"kv_lora_rank", latent.kv_rank},
               {"q_lora_rank", latent.q_rank > 0 ? Json(latent.q_rank) : Json()},
               {"qk_nope_head_dim", latent.key_width},
               {"qk_rope_head_dim", latent.shared_key_width},
               {"v_head_dim", latent.value_width},
               {"n_routed_experts", experts.count},
               {"num_experts_per_tok", experts.chosen},
               {"n_shared_experts", experts.shared},
               {"moe_intermediate_size", experts.width},
               {"first_k_dense_replace", std::min(experts.dense_layers, model.layers)},
               {"moe_layer_freq", 1},
               {"scoring_func", "sigmoid"},
               {"topk_method", "noaux_tc"},
               {"n_group", experts.groups},
               {"topk_group", experts.chosen_groups},
               {"norm_topk_prob", experts.renormalize},
               {"routed_scaling_factor", experts.scaling},
               {"use_cache", true},
               {"pad_token_id", nullptr}};
  if (!model.rope_scaling.is_none()) json["rope_scaling"] = rope;
  return json;
}

ModelConfig from_deepseek_json(const ConfigKeys& keys) {
  const ModelConfig defaults;
  keys.only("hidden_act", "silu");
  keys.only("attention_bias", false);
  keys.only("rope_interleave", true);
  const StoredRope rope = read_rope(keys, defaults.rope_theta);
  const Json latent = read_latent(keys, rope), experts = read_experts_of_deepseek(keys);
  const int64_t heads = keys.whole("num_attention_heads");
  Json model;
  model["layers"] = read_layer_count(keys);
  model["width"] = keys.whole("hidden_size");
  model["heads"] = heads;
  model["kv_heads"] = heads;
  model["ffn_width"] = keys.positive("intermediate_size");
  model["attention"] = {kLatent};
  model["latent_attention"] = latent;
  model["experts"] = experts;
  model["norm_eps"] = keys.number("rms_norm_eps", defaults.norm_eps);
  model["init_std"] = keys.number("initializer_range", defaults.init_std);
  model["rope_theta"] = rope.theta;
  model["rope_scaling"] = write_config(rope.scaling);
  model["tie_embeddings"] = keys.flag("tie_word_embeddings", false);
  model["depth_mixing"] = {{"type", "residual"}};
  return read_stored_model(model, keys, "as a model of attnres",
                           with_common_names({{"experts.count", "n_routed_experts"},
                                              {"experts.shared", "n_shared_experts"},
                                              {"experts.groups", "n_group"},
                                              {"latent_attention.score_scale", "mscale_all_dim"}}));
}

}  // namespace attnres
