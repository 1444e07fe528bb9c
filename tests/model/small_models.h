// Small models whose every parameter matters.
#pragma once

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/layers/attention.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/layers/latent_attention.h"
#include "attnres/model/transformer.h"
#include "attnres/support/random.h"
#include "tests/layers/side_by_side.h"
#include "tests/noise.h"

namespace attnres::testing {

inline constexpr int64_t kSmallVocabulary = 50;

inline Json residual() {
  return {{"type", "residual"}};
}
inline Json attn_res() {
  return {{"type", "attn_res"}};
}
// With 4 sublayers a block, the last one of three layers is short.
inline Json block_attn_res(int64_t block_size = 4) {
  return {{"type", "block_attn_res"}, {"block_size", block_size}};
}

// A mechanism with settings, and a name for tests.
struct Mixing {
  std::string name;
  Json json;
};
inline std::ostream& operator<<(std::ostream& out, const Mixing& mixing) {
  return out << mixing.name;
}

// Every mechanism that there is, as it is without settings; but ancre's weights are softmaxes of
// numbers over a temperature of 0.01, where the noise of these tests would leave no gradient.
inline std::vector<Mixing> every_mechanism() {
  std::vector<Mixing> all;
  for (const Mechanism& mechanism : mechanisms()) {
    Json json = {{"type", mechanism.text.name}};
    if (mechanism.text.name == "ancre") json["temperature"] = 0.5;
    all.push_back({mechanism.text.name, json});
  }
  return all;
}

// Those, and the arms and settings that change how a mechanism works.
inline std::vector<Mixing> every_variant() {
  std::vector<Mixing> all = every_mechanism();
  const auto add = [&](const std::string& name, const Json& json) { all.push_back({name, json}); };
  add("dense_former_original", {{"type", "dense_former"}, {"form", "original"}});
  for (const char* variant : {"rw", "lr", "pa", "rw+pa"}) {
    std::string name = fmt::format("laurel_{}", variant);
    std::replace(name.begin(), name.end(), '+', '_');
    add(name, {{"type", "laurel"}, {"variant", variant}});
  }
  add("hybrid_norm_starred", {{"type", "hybrid_norm"}, {"first_layer_pre_norm", true}});
  add("siamese_norm_unscaled", {{"type", "siamese_norm"}, {"depth_scaling", false}});
  add("siamese_norm_without_input_norm", {{"type", "siamese_norm"}, {"input_norm", false}});
  add("dca_recent", {{"type", "dca"}, {"recent_layers", 1}});
  add("mhc_single_pass", {{"type", "mhc"}, {"single_pass", true}});
  add("muddformer_pre_post_norm", {{"type", "muddformer"}, {"pre_post_norm", true}});
  add("delta_block_2", {{"type", "delta_attn_res"}, {"block_size", 2}, {"gate", "none"}});
  add("delta_block_4", {{"type", "delta_attn_res"}, {"block_size", 4}});
  for (const int64_t size : {2, 4, 6}) add(fmt::format("block_{}", size), block_attn_res(size));
  for (const bool blocks : {false, true}) {
    const Json base = blocks ? block_attn_res(4) : attn_res();
    const auto arm = [&](const std::string& name, const Json& settings) {
      Json json = base;
      json.update(settings);
      add((blocks ? "block_4_" : "attn_res_") + name, json);
    };
    arm("input_dependent", {{"query", "input_dependent"}});
    arm("no_query", {{"query", "none"}});
    arm("sigmoid", {{"weights", "sigmoid"}});
    arm("factorised", {{"weights", "factorised"}});
    arm("no_key_norm", {{"key_norm", false}});
    arm("window", {{"window", 2}});
    arm("multi_head", {{"heads", 4}});
    arm("learned_scale", {{"score_scale", "learned"}});
    arm("value_query", {{"value_query", true}});
    arm("value_query_multi_head", {{"value_query", true}, {"heads", 4}});
    if (!blocks) continue;
    arm("rms_summary", {{"block_summary", "rms"}});
    arm("rms_summary_input_dependent",
        {{"block_summary", "rms"}, {"query", "input_dependent"}, {"score_scale", 0.25}});
  }
  return all;
}

// Grouped-query attention, and weights large enough for logits that are far from uniform.
inline ModelConfig small_config(const Json& depth_mixing, int64_t layers = 3) {
  return read_model_config({{"layers", layers},
                            {"width", 32},
                            {"heads", 4},
                            {"kv_heads", 2},
                            {"ffn_width", 48},
                            {"norm_eps", 1e-5},
                            {"rope_theta", 500.0},
                            {"init_std", 0.4},
                            {"depth_mixing", depth_mixing}});
}

// Adds normal noise of standard deviation `scale` to all parameters of a kind.
inline void perturb(const Transformer& model, ParameterKind kind, double scale) {
  for (const Parameter& p : model.parameters().all()) {
    if (p.kind == kind) add_noise(p, scale);
  }
}

// A small model of Kimi's layers: delta, delta, latent, delta attention, experts after a dense
// layer; as Kimi Linear has them, or with all that Kimi K3 adds.
inline ModelConfig kimi_config(bool k3, const Json& depth_mixing) {
  Json json = {{"layers", 4},
               {"width", 32},
               {"heads", 2},
               {"ffn_width", 40},
               {"attention", {kDelta, kDelta, kLatent, kDelta}},
               {"delta_attention", {{"heads", 2}, {"head_width", 8}}},
               {"latent_attention",
                {{"kv_rank", 12}, {"key_width", 8}, {"shared_key_width", 4}, {"value_width", 6}}},
               {"experts", {{"count", 5}, {"chosen", 2}, {"width", 12}, {"scaling", 2.4}}},
               {"norm_eps", 1e-5},
               {"init_std", 0.4},
               {"depth_mixing", depth_mixing}};
  if (k3) {
    json["delta_attention"].update(Json{{"gate_lower_bound", -5.0}, {"output_gate", "full_rank"}});
    json["latent_attention"].update(Json{{"q_rank", 10}, {"output_gate", true}});
    json["experts"]["latent_width"] = 16;
    json["activation"] = {{"type", "situ"}};
  }
  return read_model_config(json);
}

// All that Llama's relatives add: a window with positions of its own, a layer without positions,
// heads of another width, biases, norms of queries, keys and outputs, GeGLU, scales.
inline ModelConfig relative_config(const Json& depth_mixing) {
  return read_model_config(
      {{"layers", 3},
       {"width", 32},
       {"heads", 4},
       {"kv_heads", 2},
       {"head_width", 12},
       {"ffn_width", 40},
       {"attention", {kSlidingWindow, kGroupedQuery, kNope}},
       {"grouped_query", {{"qkv_bias", true}, {"qk_norm", true}, {"score_scale", 0.5}}},
       {"sliding_window", {{"window", 3}, {"rope_theta", 20}}},
       {"activation", {{"type", "gelu_tanh"}}},
       {"output_norm", true},
       {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"original_context", 32}}},
       {"rope_theta", 500},
       {"embedding_scale", 2},
       {"norm_eps", 1e-5},
       {"init_std", 0.4},
       {"depth_mixing", depth_mixing}});
}

// Layers as gpt-oss has them: heads with sinks, a bias of their output, windows between, and
// experts with biases that softmax chooses.
inline ModelConfig gpt_oss_config(const Json& depth_mixing) {
  return read_model_config({{"layers", 3},
                            {"width", 32},
                            {"heads", 4},
                            {"kv_heads", 2},
                            {"attention", {kSlidingWindow, kGroupedQuery, kNope}},
                            {"grouped_query", {{"output_bias", true}, {"sinks", true}}},
                            {"sliding_window", {{"window", 5}}},
                            {"experts",
                             {{"count", 6},
                              {"chosen", 2},
                              {"width", 12},
                              {"shared", 0},
                              {"dense_layers", 0},
                              {"scores", "softmax"},
                              {"router_bias", true},
                              {"bias", true}}},
                            {"activation", {{"type", "swiglu_oai"}, {"limit", 1}}},
                            {"init_std", 0.4},
                            {"depth_mixing", depth_mixing}});
}

struct SmallModelOptions {
  int64_t layers = 3;
  bool tied = false;
  int64_t vocab_size = kSmallVocabulary;
  const Precision& precision = at::kDouble;
};

// Adds noise to the linear maps that start at numbers given, not drawn: zeros, identities.
inline void perturb_constant_matrices(const Transformer& model, double scale) {
  for (const Parameter& p : model.parameters().all()) {
    const at::Tensor values = p.tensor.view(-1);
    const bool given = values.eq(values[-1]).sum().item<int64_t>() > 1;
    if (p.kind == ParameterKind::matrix && given) add_noise(p, scale);
  }
}

// Moves every parameter from where it starts, so that all matter: pseudo-queries that spread the
// depth weights, gains that are not one.
inline Transformer perturbed(Transformer model) {
  perturb(model, ParameterKind::pseudo_query, 1.0);
  perturb(model, ParameterKind::norm_gain, 0.2);
  perturb(model, ParameterKind::bias, 0.5);
  perturb(model, ParameterKind::mixing, 0.2);
  perturb(model, ParameterKind::router_bias, 0.2);
  perturb_constant_matrices(model, 0.1);
  return model;
}

inline Transformer small_model(const Json& depth_mixing, const SmallModelOptions& options = {}) {
  ModelConfig config = small_config(depth_mixing, options.layers);
  config.tie_embeddings = options.tied;
  return perturbed(Transformer(config, options.vocab_size, /*seed=*/1, options.precision));
}

inline Transformer kimi_model(bool k3, const Json& depth_mixing,
                              const Precision& precision = at::kDouble) {
  return perturbed(
      Transformer(kimi_config(k3, depth_mixing), kSmallVocabulary, /*seed=*/1, precision));
}

inline Transformer gpt_oss_model(const Json& depth_mixing,
                                 const Precision& precision = at::kDouble) {
  return perturbed(
      Transformer(gpt_oss_config(depth_mixing), kSmallVocabulary, /*seed=*/1, precision));
}

inline Transformer relative_model(const Json& depth_mixing,
                                  const Precision& precision = at::kDouble) {
  return perturbed(
      Transformer(relative_config(depth_mixing), kSmallVocabulary, /*seed=*/1, precision));
}

// Hidden states [B, T, D] of the next tokens of sequences that are decoded.
inline at::Tensor hidden_of(const Transformer& model, const at::Tensor& ids_BT,
                            SideBySide& decoded) {
  return model.hidden(ids_BT.flatten(), decoded.next(ids_BT.size(1))).unflatten(0, ids_BT.sizes());
}

inline SideBySide side_by_side(const Transformer& model, int64_t batch, int64_t tokens) {
  return {model.make_pool({.sequences = batch, .tokens = batch * tokens}), batch};
}

// int64 ids_BT from 0 up to, not including, the vocabulary's size.
inline at::Tensor random_ids(int64_t batch, int64_t tokens, uint64_t seed = 3,
                             int64_t vocab_size = kSmallVocabulary) {
  at::Tensor ids_BT = at::empty({batch, tokens}, at::kLong);
  const RandomStream random(seed, "ids");
  for (int64_t i = 0; i < ids_BT.numel(); ++i) {
    ids_BT.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(vocab_size, i));
  }
  return ids_BT;
}

inline std::vector<int32_t> as_vector(const at::Tensor& ids) {
  const at::Tensor flat = ids.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  return {data, data + flat.numel()};
}

}  // namespace attnres::testing
