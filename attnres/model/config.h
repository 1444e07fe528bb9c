// The `model` part of a recipe: a decoder-only Transformer.
#pragma once

#include <any>
#include <map>
#include <string>
#include <typeindex>
#include <vector>

#include "attnres/depth/depth_mixing.h"
#include "attnres/depth/mechanisms/residual.h"
#include "attnres/layers/activation.h"
#include "attnres/layers/attention.h"
#include "attnres/layers/layer_place.h"
#include "attnres/layers/rope_scaling.h"
#include "attnres/support/json.h"

namespace attnres {

class ConfigReader;
class ConfigWriter;

struct ModelConfig {
  int64_t layers = 4;   // Transformer layers; two sublayers each
  int64_t width = 128;  // d
  int64_t heads = 4;
  int64_t kv_heads = 0;    // divides heads; 0 stands for `heads`
  int64_t head_width = 0;  // of grouped-query attention, even; 0 stands for width / heads
  int64_t ffn_width = 0;   // 0 stands for 8/3 of the width, rounded up to a multiple of 16
  // The kind of layer after layer; a list that is shorter than `layers` is repeated.
  std::vector<std::string> attention = {kGroupedQuery};
  Activation activation;     // of every feed-forward and expert
  bool output_norm = false;  // of every sublayer, beside that of its input (Gemma 3)
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double embedding_scale = 1;  // by which token embeddings are multiplied; the head's are not
  double init_std = 0.02;
  bool tie_embeddings = false;
  DepthMixing depth_mixing;

  template <class V>
  void visit(V& v) {
    visit_layers(v);
    v("depth_mixing", depth_mixing);
  }

  // All but what combines them, which can be read only for a shape that is known.
  template <class V>
  void visit_layers(V& v) {
    v("layers", layers);
    v("width", width);
    v("heads", heads);
    v("kv_heads", kv_heads);
    v("head_width", head_width);
    v("ffn_width", ffn_width);
    v("attention", attention);
    visit_settings(v);
    v("activation", activation);
    v("output_norm", output_norm);
    v("norm_eps", norm_eps);
    v("rope_theta", rope_theta);
    v("rope_scaling", rope_scaling);
    v("embedding_scale", embedding_scale);
    v("init_std", init_std);
    v("tie_embeddings", tie_embeddings);
  }

  // The settings of a kind of layer (layer_kinds/), by their type; the defaults where none are
  // given.
  template <class Settings>
  const Settings& settings() const {
    static const Settings defaults;
    const auto found = settings_.find(typeid(Settings));
    return found == settings_.end() ? defaults : *std::any_cast<Settings>(&found->second);
  }
  template <class Settings>
  Settings& settings() {
    std::any& given = settings_[typeid(Settings)];
    if (!given.has_value()) given = Settings();
    return *std::any_cast<Settings>(&given);
  }

  const std::string& attention_of(int64_t layer) const {
    return attention[static_cast<size_t>(layer) % attention.size()];
  }
  bool has_attention(const std::string& kind) const;
  // With rotary positions, in a window, or without positions.
  bool has_grouped_query() const;
  bool has_experts(int64_t layer) const;

  // Whether its connections are plain residual ones.
  bool is_residual() const { return depth_mixing.settings<ResidualSettings>() != nullptr; }

  int sublayers() const { return static_cast<int>(2 * layers); }  // L
  LayerPlace layer_place(int site, const SublayerNeeds& needs) const {
    return {
        .width = width, .norm_eps = norm_eps, .init_std = init_std, .needs = needs, .site = site};
  }
  MixerShape mixer_shape() const {
    return {width, sublayers(), norm_eps, heads, kv_heads, init_std, head_width};
  }

 private:
  // Those of every kind, each under its key.
  void visit_settings(ConfigReader& v);
  void visit_settings(ConfigWriter& v);

  std::map<std::type_index, std::any> settings_;
};

// Reads, checks and fills in every default. Throws UsageError naming the key (`path` before it).
ModelConfig read_model_config(const Json& json, const std::string& path = "model");

}  // namespace attnres
