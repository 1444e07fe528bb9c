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
    v("depth_mixing", depth_mixing);
  }
};

// A site may read all before it, so that planning and running take time as the square of this.
constexpr int64_t kMostLayers = 1024;

void check_kinds(const std::string& path, const ModelConfig& config) {
  require_usage(
      !config.attention.empty() && config.attention.size() <= static_cast<size_t>(config.layers),
      "{}.attention: expected 1 to {} kinds, one a layer, got {}", path, config.layers,
      config.attention.size());
  for (const std::string& kind : config.attention) find_attention_kind(kind, path);
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
  config.activation.check(path + ".activation");
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

ModelConfig read_model_config(const Json& json, const std::string& path) {
  // A name alone is refused as the mechanisms say it.
  const auto mixing = json.find("depth_mixing");
  if (mixing != json.end() && mixing->is_string()) find_mechanism(*mixing);
  WrittenModel written;
  read_config(json, path, written);
  ModelConfig& config = written.config;

  check_whole(path, "layers", config.layers, 1, kMostLayers);
  check_whole(path, "width", config.width, 1);
  check_whole(path, "heads", config.heads, 1);
  check_whole(path, "kv_heads", config.kv_heads, 0);
  check_whole(path, "head_width", config.head_width, 0);
  check_whole(path, "ffn_width", config.ffn_width, 0);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.ffn_width == 0) config.ffn_width = (config.width * 8 / 3 + 15) / 16 * 16;

  check_kinds(path, config);
  shorten(config.attention);
  require_usage(config.heads % config.kv_heads == 0,
                "{}.kv_heads: {} heads are not divisible by {}", path, config.heads,
                config.kv_heads);
  require_usage(config.norm_eps > 0, "{}.norm_eps: expected more than 0, got {}", path,
                config.norm_eps);
  require_usage(config.rope_theta > 0, "{}.rope_theta: expected more than 0, got {}", path,
                config.rope_theta);
  require_usage(config.embedding_scale > 0, "{}.embedding_scale: expected more than 0, got {}",
                path, config.embedding_scale);
  require_usage(config.init_std >= 0, "{}.init_std: expected 0 or more, got {}", path,
                config.init_std);
  resolve_layers(path, config);
  config.depth_mixing = DepthMixing(written.depth_mixing, config.mixer_shape());
  return config;
}

}  // namespace attnres
