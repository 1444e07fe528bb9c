// The `model` part of a recipe: a decoder-only Transformer.
#pragma once

#include <string>
#include <vector>

#include "attnres/depth/depth_mixing.h"
#include "attnres/depth/mechanisms/residual.h"
#include "attnres/layers/activation.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/experts.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/support/json.h"

namespace attnres {

// Kinds of attention.
inline constexpr const char* kGroupedQuery = "grouped_query";  // layers/attention.h, with rotary
inline constexpr const char* kDelta = "delta";                 // layers/delta_attention.h
inline constexpr const char* kLatent = "latent";               // layers/latent_attention.h
// Kinds of feed-forward.
inline constexpr const char* kDense = "dense";      // layers/feed_forward.h
inline constexpr const char* kExperts = "experts";  // layers/experts.h

struct ModelConfig {
  int64_t layers = 4;     // Transformer layers; two sublayers each
  int64_t width = 128;    // d
  int64_t heads = 4;      // divides width where there is grouped-query attention
  int64_t kv_heads = 0;   // divides heads; 0 stands for `heads`
  int64_t ffn_width = 0;  // 0 stands for 8/3 of the width, rounded up to a multiple of 16
  // The kind of layer after layer; a list that is shorter than `layers` is repeated.
  std::vector<std::string> attention = {kGroupedQuery};
  DeltaAttentionSettings delta_attention;
  LatentAttentionSettings latent_attention;
  ExpertsSettings experts;
  Activation activation;  // of every feed-forward and expert
  double norm_eps = 1e-6;
  double rope_theta = 10000;
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
    v("ffn_width", ffn_width);
    v("attention", attention);
    v("delta_attention", delta_attention);
    v("latent_attention", latent_attention);
    v("experts", experts);
    v("activation", activation);
    v("norm_eps", norm_eps);
    v("rope_theta", rope_theta);
    v("init_std", init_std);
    v("tie_embeddings", tie_embeddings);
  }

  const std::string& attention_of(int64_t layer) const {
    return attention[static_cast<size_t>(layer) % attention.size()];
  }
  bool has_attention(const std::string& kind) const;
  bool has_experts(int64_t layer) const {
    return experts.count > 0 && layer >= experts.dense_layers;
  }

  // Whether its connections are plain residual ones.
  bool is_residual() const { return depth_mixing.settings<ResidualSettings>() != nullptr; }

  int sublayers() const { return static_cast<int>(2 * layers); }  // L
  MixerShape mixer_shape() const {
    return {width, sublayers(), norm_eps, heads, kv_heads, init_std};
  }
};

// Reads, checks and fills in every default. Throws UsageError naming the key (`path` before it).
ModelConfig read_model_config(const Json& json, const std::string& path = "model");

}  // namespace attnres
