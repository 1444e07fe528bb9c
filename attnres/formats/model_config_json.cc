#include "attnres/formats/model_config_json.h"

#include <nlohmann/json.hpp>

#include "attnres/support/config.h"

namespace attnres {
namespace {

const Json kResidual = {{"type", "residual"}};

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

// The keys of an object in config.json, with errors that name the file and the key.
class Keys {
 public:
  Keys(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
    require(object.is_object(), "{}: expected an object with keys, got {}", what_, object.dump());
  }

  // Absent or null.
  bool missing(const char* key) const {
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null();
  }

  const Json& at(const char* key) const {
    require(!missing(key), "{}: the key {} is missing", what_, key);
    return object_.at(key);
  }

  int64_t whole(const char* key) const {
    const Json& value = at(key);
    require(value.is_number_integer(), "{}: {}: expected a whole number, got {}", what_, key,
            value.dump());
    return value.get<int64_t>();
  }
  int64_t whole(const char* key, int64_t otherwise) const {
    return missing(key) ? otherwise : whole(key);
  }
  double number(const char* key, double otherwise) const {
    if (missing(key)) return otherwise;
    const Json& value = at(key);
    require(value.is_number(), "{}: {}: expected a number, got {}", what_, key, value.dump());
    return value.get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (missing(key)) return otherwise;
    const Json& value = at(key);
    require(value.is_boolean(), "{}: {}: expected true or false, got {}", what_, key, value.dump());
    return value.get<bool>();
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    require(value.is_string(), "{}: {}: expected text, got {}", what_, key, value.dump());
    return value.get<std::string>();
  }

  // Refuses a value other than the one that this program computes.
  void only(const char* key, const Json& computed) const {
    require(missing(key) || at(key) == computed, "{}: {} is {}, but attnres computes only {}",
            what_, key, missing(key) ? "" : at(key).dump(), computed.dump());
  }

  Keys inner(const char* key) const { return {at(key), what_ + ": " + key}; }
  const std::string& what() const { return what_; }

 private:
  const Json& object_;
  std::string what_;
};

// transformers 5 nests what older releases keep at the top level.
double read_rope_theta(const Keys& keys, double otherwise) {
  double theta = keys.number("rope_theta", otherwise);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (keys.missing(key)) continue;
    const Keys rope = keys.inner(key);
    rope.only("rope_type", "default");
    rope.only("type", "default");
    rope.only("partial_rotary_factor", 1.0);
    theta = rope.number("rope_theta", theta);
  }
  return theta;
}

ModelConfig checked(const Json& model, const Keys& keys, const char* path) {
  try {
    return read_model_config(model, path);
  } catch (const UsageError& e) {
    fail("{}: {}", keys.what(), e.what());
  }
}

ModelConfig from_llama(const Keys& keys) {
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
  return checked({{"layers", keys.whole("num_hidden_layers")},
                  {"width", width},
                  {"heads", heads},
                  {"kv_heads", keys.whole("num_key_value_heads", heads)},
                  {"ffn_width", keys.whole("intermediate_size")},
                  {"norm_eps", keys.number("rms_norm_eps", defaults.norm_eps)},
                  {"rope_theta", read_rope_theta(keys, defaults.rope_theta)},
                  {"init_std", keys.number("initializer_range", defaults.init_std)},
                  {"tie_embeddings", keys.flag("tie_word_embeddings", false)},
                  {"depth_mixing", kResidual}},
                 keys, "as a model of attnres");
}

ModelConfig from_attnres(const Keys& keys) {
  const ModelConfig model = checked(keys.at("attnres"), keys, "attnres");
  const bool tied = keys.flag("tie_word_embeddings", model.tie_embeddings);
  require(tied == model.tie_embeddings,
          "{}: tie_word_embeddings is {}, but attnres.tie_embeddings is {}", keys.what(), tied,
          model.tie_embeddings);
  return model;
}

}  // namespace

Json to_config_json(const StoredConfig& stored, at::ScalarType dtype) {
  const ModelConfig& model = stored.model;
  Json json;
  if (model.depth_mixing == resolve_depth_mixing(kResidual, model.mixer_shape())) {
    json = {{"architectures", Json::array({"LlamaForCausalLM"})},
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
  } else {
    json = {{"architectures", Json::array({"AttnResForCausalLM"})},
            {"model_type", "attnres"},
            {"auto_map",
             {{"AutoConfig", "modeling_attnres.AttnResConfig"},
              {"AutoModelForCausalLM", "modeling_attnres.AttnResForCausalLM"}}},
            {"attnres", write_config(model)}};
  }
  json.update(Json{{"vocab_size", stored.vocab_size},
                   {"max_position_embeddings", stored.context},
                   {"tie_word_embeddings", model.tie_embeddings},
                   {"bos_token_id", stored.end_of_document},
                   {"eos_token_id", stored.end_of_document},
                   {"dtype", dtype_name(dtype)},
                   {"torch_dtype", dtype_name(dtype)}});
  return json;
}

StoredConfig from_config_json(const Json& json, const std::string& what) {
  const Keys keys(json, what);
  const std::string type = keys.text("model_type");
  require(type == "llama" || type == "attnres",
          "{}: model_type {} is unknown; attnres reads llama and attnres", what, type);
  StoredConfig stored;
  stored.model = type == "llama" ? from_llama(keys) : from_attnres(keys);
  stored.vocab_size = keys.whole("vocab_size");
  require(stored.vocab_size >= 1 && stored.vocab_size <= INT32_MAX,
          "{}: vocab_size: expected 1 to {}, got {}", what, INT32_MAX, stored.vocab_size);
  stored.context = keys.whole("max_position_embeddings");
  require(stored.context >= 2, "{}: max_position_embeddings: expected 2 or more, got {}", what,
          stored.context);
  return stored;
}

}  // namespace attnres
