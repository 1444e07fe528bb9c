#include "attnres/formats/rope_json.h"

#include <cmath>

#include "attnres/support/format.h"

namespace attnres {
namespace {

constexpr const char* kFirstContext = "original_max_position_embeddings";

// transformers' rope_type, older: type.
std::string rope_type(const ConfigKeys& rope) {
  for (const char* key : {"rope_type", "type"}) {
    if (!rope.missing(key)) return rope.text(key);
  }
  return "default";
}

// By which YaRN multiplies cosine and sine; DeepSeek gives it as a ratio.
double yarn_attention_factor(const ConfigKeys& rope, double factor) {
  const auto of_mscale = [&](const char* key) {
    return 0.1 * rope.number(key, 1) * std::log(factor) + 1;
  };
  if (!rope.missing("attention_factor")) {
    const double given = rope.number("attention_factor", 1);
    require(given > 0, "{}: attention_factor: expected more than 0, got {}", rope.what(), given);
    return given;
  }
  const bool is_ratio = rope.number("mscale", 0) != 0 && rope.number("mscale_all_dim", 0) != 0;
  if (!is_ratio || factor < 1) return 0;  // below 1 it is refused
  const double ratio = of_mscale("mscale") / of_mscale("mscale_all_dim");
  require(ratio > 0, "{}: mscale and mscale_all_dim: expected a factor of more than 0, got {}",
          rope.what(), ratio);
  return ratio;
}

}  // namespace

const char* rope_key(const ConfigKeys& keys) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!keys.missing(key) && !keys.at(key).empty()) return key;
  }
  return nullptr;
}

StoredRope read_rope_parameters(const ConfigKeys& rope, const ConfigKeys& keys, double theta) {
  StoredRope stored = {.theta = rope.number("rope_theta", theta)};
  rope.only("partial_rotary_factor", 1.0);
  const std::string type = rope_type(rope);
  // Tokens of a text have one position in each of the three that images have.
  if (type == "default" || type == "mrope") return stored;
  require(type == "linear" || type == "llama3" || type == "yarn",
          "{}: rope_type {}: attnres computes default, linear, llama3 and yarn", rope.what(),
          one_line(type));
  RopeScaling& scaling = stored.scaling;
  scaling.type = type;
  rope.at("factor");
  scaling.factor = rope.number("factor", 1);
  if (type == "linear") return stored;
  scaling.original_context = rope.missing(kFirstContext) ? keys.whole("max_position_embeddings")
                                                         : rope.whole(kFirstContext);
  if (type == "llama3") {
    scaling.low_freq_factor = rope.number("low_freq_factor", scaling.low_freq_factor);
    scaling.high_freq_factor = rope.number("high_freq_factor", scaling.high_freq_factor);
    return stored;
  }
  scaling.beta_fast = rope.number("beta_fast", scaling.beta_fast);
  scaling.beta_slow = rope.number("beta_slow", scaling.beta_slow);
  scaling.truncate = rope.flag("truncate", scaling.truncate);
  scaling.attention_factor = yarn_attention_factor(rope, scaling.factor);
  return stored;
}

StoredRope read_rope(const ConfigKeys& keys, double theta) {
  theta = keys.number("rope_theta", theta);
  const char* key = rope_key(keys);
  if (key == nullptr) return {.theta = theta};
  const ConfigKeys rope = keys.inner(key);
  for (const char* kind : {kFullLayer, kWindowLayer}) {
    require(rope.missing(kind),
            "{}: {}: attnres computes positions of each kind of layers only of gemma3_text",
            rope.what(), kind);
  }
  StoredRope stored = read_rope_parameters(rope, keys, theta);
  if (stored.scaling.original_context > 0 && !keys.missing(kFirstContext)) {
    stored.scaling.original_context = keys.whole(kFirstContext);
  }
  return stored;
}

Json rope_parameters_json(const StoredRope& rope) {
  const RopeScaling& scaling = rope.scaling;
  Json json = {{"rope_theta", rope.theta},
               {"rope_type", scaling.is_none() ? "default" : scaling.type}};
  if (scaling.is_none()) return json;
  json["factor"] = scaling.factor;
  if (scaling.type == "linear") return json;
  json["original_max_position_embeddings"] = scaling.original_context;
  if (scaling.type == "llama3") {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
    return json;
  }
  json["beta_fast"] = scaling.beta_fast;
  json["beta_slow"] = scaling.beta_slow;
  json["truncate"] = scaling.truncate;
  if (scaling.attention_factor > 0) json["attention_factor"] = scaling.attention_factor;
  return json;
}

}  // namespace attnres
