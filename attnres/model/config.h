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
#include "attnres/layers/layer_place.h"
#include "attnres/layers/rope_scaling.h"
#include "attnres/support/json.h"

namespace attnres {

// Kinds of attention.
inline constexpr const char* kGroupedQuery = "grouped_query";    // layers/attention.h, with rotary
inline constexpr const char* kSlidingWindow = "sliding_window";  // the same in a window
inline constexpr const char* kNope = "nope";                     // the same without positions
inline constexpr const char* kDelta = "delta";                   // layers/delta_attention.h
inline constexpr const char* kLatent = "latent";                 // layers/latent_attention.h
// Kinds of feed-forward.
inline constexpr const char* kDense = "dense";      // layers/feed_forward.h
inline constexpr const char* kExperts = "experts";  // layers/experts.h

// What grouped-query attention may have, in a window and without positions too.
struct GroupedQuerySettings {
  bool qkv_bias = false;
  bool qk_norm = false;    // of queries and keys, head by head
  double score_scale = 0;  // 0 stands for 1 / sqrt(head_width)

  template <class V>
  void visit(V& v) {
    v("qkv_bias", qkv_bias);
    v("qk_norm", qk_norm);
    v("score_scale", score_scale);
  }
};

struct SlidingWindowSettings {
  int64_t window = 4096;  // tokens that a token sees, itself one of them
  // 0: positions are the model's, scaled as they are. Else its own, unscaled (Gemma 3).
  double rope_theta = 0;

  template <class V>
  void visit(V& v) {
    v("window", window);
    v("rope_theta", rope_theta);
  }
};

struct ModelConfig {
  int64_t layers = 4;   // Transformer layers; two sublayers each
  int64_t width = 128;  // d
  int64_t heads = 4;
  int64_t kv_heads = 0;    // divides heads; 0 stands for `heads`
  int64_t head_width = 0;  // of grouped-query attention, even; 0 stands for width / heads
  int64_t ffn_width = 0;   // 0 stands for 8/3 of the width, rounded up to a multiple of 16
  // The kind of layer after layer; a list that is shorter than `layers` is repeated.
  std::vector<std::string> attention = {kGroupedQuery};
  GroupedQuerySettings grouped_query;
  SlidingWindowSettings sliding_window;
  DeltaAttentionSettings delta_attention;
  LatentAttentionSettings latent_attention;
  ExpertsSettings experts;
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
    v("grouped_query", grouped_query);
    v("sliding_window", sliding_window);
    v("delta_attention", delta_attention);
    v("latent_attention", latent_attention);
    v("experts", experts);
    v("activation", activation);
    v("output_norm", output_norm);
    v("norm_eps", norm_eps);
    v("rope_theta", rope_theta);
    v("rope_scaling", rope_scaling);
    v("embedding_scale", embedding_scale);
    v("init_std", init_std);
    v("tie_embeddings", tie_embeddings);
  }

  const std::string& attention_of(int64_t layer) const {
    return attention[static_cast<size_t>(layer) % attention.size()];
  }
  bool has_attention(const std::string& kind) const;
  // With rotary positions, in a window, or without positions.
  bool has_grouped_query() const;
  bool has_experts(int64_t layer) const {
    return experts.count > 0 && layer >= experts.dense_layers;
  }

  // Whether its connections are plain residual ones.
  bool is_residual() const { return depth_mixing.settings<ResidualSettings>() != nullptr; }

  int sublayers() const { return static_cast<int>(2 * layers); }  // L
  LayerPlace layer_place(int site, const SublayerNeeds& needs) const {
    return {width, norm_eps, init_std, needs, site};
  }
  MixerShape mixer_shape() const {
    return {width, sublayers(), norm_eps, heads, kv_heads, init_std, head_width};
  }
};

// Reads, checks and fills in every default. Throws UsageError naming the key (`path` before it).
ModelConfig read_model_config(const Json& json, const std::string& path = "model");

}  // namespace attnres
