#include "attnres/formats/model_config_json.h"

#include <nlohmann/json.hpp>

#include "attnres/formats/architectures.h"
#include "attnres/formats/config_keys.h"
#include "attnres/formats/kimi_config_json.h"
#include "attnres/support/config.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

std::string dtype_name(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    default:
      fail("model directory: weights are stored as float32, bfloat16 or float16, not as {}",
           c10::toString(dtype));
  }
}

// transformers 5 nests what older releases keep at the top level.
double read_rope_theta(const ConfigKeys& keys, double otherwise) {
  double theta = keys.number("rope_theta", otherwise);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (keys.missing(key)) continue;
    const ConfigKeys rope = keys.inner(key);
    rope.only("rope_type", "default");
    rope.only("type", "default");
    rope.only("partial_rotary_factor", 1.0);
    theta = rope.number("rope_theta", theta);
  }
  return theta;
}

ModelConfig from_llama(const ConfigKeys& keys) {
  const ModelConfig defaults;
  const int64_t width = keys.whole("hidden_size"), heads = keys.whole("num_attention_heads");
  keys.only("hidden_act", "silu");
  keys.only("attention_bias", false);
  keys.only("mlp_bias", false);
  keys.only("partial_rotary_factor", 1.0);
  require(keys.missing("quantization_config"),
          "{}: quantization_config: quantized weights cannot be read; save the model without",
          keys.what());
  require(
      keys.missing("head_dim") || keys.whole("head_dim") * heads == width,
      "{}: head_dim is {}, but attnres computes only hidden_size / num_attention_heads = {} / {}",
      keys.what(), keys.whole("head_dim", 0), width, heads);
  return read_stored_model({{"layers", keys.whole("num_hidden_layers")},
                            {"width", width},
                            {"heads", heads},
                            {"kv_heads", keys.whole("num_key_value_heads", heads)},
                            {"ffn_width", keys.whole("intermediate_size")},
                            {"norm_eps", keys.number("rms_norm_eps", defaults.norm_eps)},
                            {"rope_theta", read_rope_theta(keys, defaults.rope_theta)},
                            {"init_std", keys.number("initializer_range", defaults.init_std)},
                            {"tie_embeddings", keys.flag("tie_word_embeddings", false)},
                            {"depth_mixing", {{"type", "residual"}}}},
                           keys, "as a model of attnres");
}

ModelConfig from_attnres(const ConfigKeys& keys) {
  const ModelConfig model = read_stored_model(keys.at("attnres"), keys, "attnres");
  const bool tied = keys.flag("tie_word_embeddings", model.tie_embeddings);
  require(tied == model.tie_embeddings,
          "{}: tie_word_embeddings is {}, but attnres.tie_embeddings is {}", keys.what(), tied,
          model.tie_embeddings);
  return model;
}

Json to_llama_json(const ModelConfig& model) {
  return {{"architectures", Json::array({"LlamaForCausalLM"})},
          {"model_type", "llama"},
          {"hidden_size", model.width},
          {"intermediate_size", model.ffn_width},
          {"num_hidden_layers", model.layers},
          {"num_attention_heads", model.heads},
          {"num_key_value_heads", model.kv_heads},
          {"head_dim", model.width / model.heads},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"attention_dropout", 0.0},
          {"mlp_bias", false},
          {"rms_norm_eps", model.norm_eps},
          {"rope_theta", model.rope_theta},
          {"rope_parameters", {{"rope_theta", model.rope_theta}, {"rope_type", "default"}}},
          {"initializer_range", model.init_std},
          {"use_cache", true}};
}

}  // namespace

std::vector<int64_t> DocumentIds::ends() const {
  std::vector<int64_t> ids;
  const auto add = [&](const Json& id) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  };
  if (end.is_array()) {
    for (const Json& id : end) add(id);
  } else {
    add(end);
  }
  return ids;
}

Json to_config_json(const StoredConfig& stored, at::ScalarType dtype) {
  const ModelConfig& model = stored.model;
  const FileLayout layout = layout_of(model);
  Json json = layout == FileLayout::llama         ? to_llama_json(model)
              : layout == FileLayout::kimi_linear ? to_kimi_linear_json(model)
              : layout == FileLayout::kimi_k3
                  ? to_kimi_k3_text_json(model)
                  : Json{{"architectures", Json::array({"AttnResForCausalLM"})},
                         {"model_type", "attnres"},
                         {"auto_map",
                          {{"AutoConfig", "modeling_attnres.AttnResConfig"},
                           {"AutoModelForCausalLM", "modeling_attnres.AttnResForCausalLM"}}},
                         {"attnres", write_config(model)}};
  json.update(
      Json{{"vocab_size", stored.vocab_size},
           {layout == FileLayout::kimi_linear ? "model_max_length" : "max_position_embeddings",
            stored.context},
           {"tie_word_embeddings", model.tie_embeddings},
           {"bos_token_id", stored.document_ids.begin},
           {"eos_token_id", stored.document_ids.end},
           {"dtype", dtype_name(dtype)},
           {"torch_dtype", dtype_name(dtype)}});
  if (layout != FileLayout::kimi_k3) return json;
  return {{"architectures", Json::array({"KimiK3ForConditionalGeneration"})},
          {"model_type", "kimi_k3"},
          {"text_config", json},
          {"dtype", dtype_name(dtype)}};
}

StoredConfig from_config_json(const Json& json, const std::string& what) {
  const ConfigKeys file(json, what);
  const std::string type = file.text("model_type");
  require(type == "llama" || type == "kimi_linear" || type == "kimi_k3" || type == "attnres",
          "{}: model_type {} is unknown; attnres reads llama, kimi_linear, kimi_k3 and attnres",
          what, one_line(type));
  const bool nested = !file.missing("text_config");
  require(!nested || type == "kimi_k3", "{}: text_config: attnres reads it of kimi_k3 only", what);
  const ConfigKeys keys = nested ? file.inner("text_config") : file;
  StoredConfig stored;
  stored.model = type == "llama"     ? from_llama(keys)
                 : type == "attnres" ? from_attnres(keys)
                                     : from_kimi_json(keys);
  stored.vocab_size = keys.whole("vocab_size");
  require(stored.vocab_size >= 1 && stored.vocab_size <= INT32_MAX,
          "{}: vocab_size: expected 1 to {}, got {}", keys.what(), INT32_MAX, stored.vocab_size);
  // Kimi Linear's older name.
  const char* context =
      keys.missing("model_max_length") ? "max_position_embeddings" : "model_max_length";
  stored.context = keys.whole(context);
  require(stored.context >= 2, "{}: {}: expected 2 or more, got {}", keys.what(), context,
          stored.context);
  const auto id = [&](const char* key) {
    return keys.missing(key) ? json.value(key, Json()) : keys.at(key);
  };
  stored.document_ids.begin = id("bos_token_id");
  stored.document_ids.end = id("eos_token_id");
  return stored;
}

}  // namespace attnres
