#include "attnres/formats/rope_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/support/format.h"

namespace attnres {
namespace {

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
  if (!rope.missing("attention_factor")) return rope.number("attention_factor", 1);
  const bool is_ratio = rope.number("mscale", 0) != 0 && rope.number("mscale_all_dim", 0) != 0;
  return is_ratio ? of_mscale("mscale") / of_mscale("mscale_all_dim") : 0;
}

}  // namespace

StoredRope read_rope_parameters(const ConfigKeys& rope, const ConfigKeys& keys, double theta) {
  StoredRope stored = {.theta = rope.number("rope_theta", theta)};
  rope.only("partial_rotary_factor", 1.0);
  const std::string type = rope_type(rope);
  if (type == "default") return stored;
  require(type == "linear" || type == "llama3" || type == "yarn",
          "{}: rope_type {}: attnres computes default, linear, llama3 and yarn", rope.what(),
          one_line(type));
  RopeScaling& scaling = stored.scaling;
  scaling.type = type;
  rope.at("factor");
  scaling.factor = rope.number("factor", 1);
  if (type == "linear") return stored;
  const char* original = "original_max_position_embeddings";
  scaling.original_context =
      rope.missing(original) ? keys.whole("max_position_embeddings") : rope.whole(original);
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
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!keys.missing(key)) return read_rope_parameters(keys.inner(key), keys, theta);
  }
  return {.theta = theta};
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
