#include "attnres/model/config.h"

#include <algorithm>

#include "attnres/depth/mechanism.h"
#include "attnres/layers/experts.h"
#include "attnres/model/layer_kind.h"
#include "attnres/support/config.h"

namespace attnres {
namespace {

// A model as a recipe writes it.
struct WrittenModel {
  ModelConfig config;
  Json depth_mixing = DepthMixing().to_json();

  template <class V>
  void visit(V& v) {
    config.visit_layers(v);
    ModelConfig::visit_depth_mixing(v, depth_mixing);
  }
};

void check_kinds(const std::string& path, const ModelConfig& config) {
  require_usage(
      !config.attention.empty() && config.attention.size() <= static_cast<size_t>(config.layers),
      "{}.attention: expected 1 to {} kinds, one a layer, got {}", path, config.layers,
      config.attention.size());
}

// The shortest list that says the same when it is repeated.
void shorten(std::vector<std::string>& kinds) {
  for (size_t period = 1; period < kinds.size(); ++period) {
    bool repeats = true;
    for (size_t i = period; i < kinds.size(); ++i) {
      repeats = repeats && kinds[i] == kinds[i - period];
    }
    if (!repeats) continue;
    kinds.resize(period);
    return;
  }
}

void resolve_layers(const std::string& path, ModelConfig& config) {
  const Json given = write_config(config), defaults = write_config(ModelConfig());
  for (const LayerKind* kind : all_kinds()) {
    if (kind->is_in(config)) {
      kind->resolve(config, path);
    } else if (const std::string& key = kind->settings.key; !key.empty()) {
      // They would be silently without effect.
      require_usage(given[key] == defaults[key],
                    "{}.{}: this model has no {}: leave its settings out, or add it", path, key,
                    kind->missing);
    }
  }
  config.rope_scaling.check(path + ".rope_scaling");
}

}  // namespace

bool ModelConfig::has_attention(const std::string& kind) const {
  return std::find(attention.begin(), attention.end(), kind) != attention.end();
}

bool ModelConfig::has_grouped_query() const {
  return has_attention(kGroupedQuery) || has_attention(kSlidingWindow) || has_attention(kNope);
}

bool ModelConfig::has_experts(int64_t layer) const {
  const auto& experts = settings<ExpertsSettings>();
  return experts.count > 0 && layer >= experts.dense_layers;
}

void ModelConfig::visit_settings(ConfigReader& v) {
  for (const LayerKind* kind : all_kinds()) {
    if (kind->settings.read) kind->settings.read(v, *this);
  }
}

void ModelConfig::visit_settings(ConfigWriter& v) {
  for (const LayerKind* kind : all_kinds()) {
    if (kind->settings.write) kind->settings.write(v, *this);
  }
}

void ModelConfig::visit_settings(ConfigLister& v) {
  for (const LayerKind* kind : all_kinds()) {
    if (kind->settings.list) kind->settings.list(v, *this);
  }
}

std::vector<std::string> ModelConfig::attention_names() {
  std::vector<std::string> names;
  for (const LayerKind& kind : attention_kinds()) names.push_back(kind.name);
  return names;
}

std::vector<ConfigKey> model_keys() {
  std::vector<ConfigKey> keys = list_keys(ModelConfig());
  for (ConfigKey& key : keys) {
    if (key.name == "depth_mixing") add_mechanism_keys(key);
  }
  return keys;
}

ModelConfig read_model_config(const Json& json, const std::string& path) {
  // A name alone is refused as the mechanisms say it.
  const auto mixing = json.find("depth_mixing");
  if (mixing != json.end() && mixing->is_string()) find_mechanism(*mixing);
  WrittenModel written;
  read_config(json, path, written);
  ModelConfig& config = written.config;

  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.ffn_width == 0) config.ffn_width = (config.width * 8 / 3 + 15) / 16 * 16;

  check_kinds(path, config);
  shorten(config.attention);
  require_usage(config.heads % config.kv_heads == 0,
                "{}.kv_heads: {} heads are not divisible by {}", path, config.heads,
                config.kv_heads);
  resolve_layers(path, config);
  config.depth_mixing = DepthMixing(written.depth_mixing, config.mixer_shape());
  return config;
}

}  // namespace attnres
