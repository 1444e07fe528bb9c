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
#include "attnres/layers/low_rank_map.h"
#include "attnres/layers/rope_scaling.h"
#include "attnres/support/config_key.h"
#include "attnres/support/json.h"

namespace attnres {

class ConfigLister;
class ConfigReader;
class ConfigWriter;

// A site may read all before it, so that planning and running take time as the square of this.
inline constexpr int64_t kMostLayers = 1024;
// More than anyone means, and so few tokens that products with sizes of a model do not overflow.
inline constexpr int64_t kMostContext = int64_t{1} << 24;

struct ModelConfig {
  int64_t layers = 4;
  int64_t width = 128;
  int64_t heads = 4;
  int64_t kv_heads = 0;
  int64_t head_width = 0;
  int64_t ffn_width = 0;
  std::vector<std::string> attention = {kGroupedQuery};
  Activation activation;
  bool output_norm = false;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  RopeScaling rope_scaling;
  double embedding_scale = 1;
  double init_std = 0.02;
  bool tie_embeddings = false;
  LoraSettings lora;
  DepthMixing depth_mixing;

  template <class V>
  void visit(V& v) {
    visit_layers(v);
    visit_depth_mixing(v, depth_mixing);
  }

  // All but what combines them, which can be read only for a shape that is known.
  template <class V>
  void visit_layers(V& v) {
    v("layers", layers, "Transformer layers, each an attention and a feed-forward",
      from_to(1, kMostLayers));
    v("width", width, "numbers of a token's state: d", dimension(1));
    v("heads", heads, "heads of attention", dimension(1));
    v("kv_heads", kv_heads, "heads of keys and values, which divide the heads; 0 stands for heads",
      dimension(0));
    v("head_width", head_width,
      "numbers of a head of grouped-query attention, even; 0 stands for width / heads",
      dimension(0));
    v("ffn_width", ffn_width,
      "hidden width of a feed-forward; 0 stands for 8/3 of the width, rounded up to a multiple of "
      "16",
      dimension(0));
    v("attention", attention,
      "kinds of attention, layer after layer; a list that is shorter than layers is repeated",
      one_of_names(attention_names()));
    visit_settings(v);
    v("activation", activation, "activation of every feed-forward and expert");
    v("output_norm", output_norm,
      "whether the output of every sublayer is normed, beside its input (Gemma 3)");
    v("norm_eps", norm_eps, "what is added to the mean square in RMSNorm",
      from_to(1e-30, 1));  // in float32 less is 0, by which rows of zeros would be divided
    v("rope_theta", rope_theta, "base of the frequencies of rotary positions",
      above_to(1, kLargestTheta));
    v("rope_scaling", rope_scaling, "rotary positions beyond the context trained on first");
    v("embedding_scale", embedding_scale,
      "by which token embeddings are multiplied; the head's are not", positive_factor());
    v("init_std", init_std, "standard deviation with which maps and embeddings start",
      factor_from(0));
    v("tie_embeddings", tie_embeddings, "whether the head's weights are the embeddings");
    v("lora", lora, "maps of low rank beside those of a model, whose own stay (LoRA)");
  }

  // That member, or what is written for it.
  template <class V, class Mixing>
  static void visit_depth_mixing(V& v, Mixing& mixing) {
    v("depth_mixing", mixing, "how the layers are combined: docs/mechanisms.md");
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
  void visit_settings(ConfigLister& v);
  static std::vector<std::string> attention_names();

  std::map<std::type_index, std::any> settings_;
};

// Reads, checks and fills in every default. Throws UsageError naming the key (`path` before it).
ModelConfig read_model_config(const Json& json, const std::string& path = "model");

// Every key of a recipe's model; of depth_mixing those of every mechanism.
std::vector<ConfigKey> model_keys();

}  // namespace attnres
