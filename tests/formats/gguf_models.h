// A small model of each of llama.cpp's architectures, and what becomes of it in a file.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "attnres/formats/gguf_load.h"
#include "attnres/formats/gguf_model.h"
#include "attnres/layers/delta_attention.h"
#include "attnres/support/config.h"
#include "tests/model/small_models.h"
#include "tests/text/test_files.h"

namespace attnres::testing {

inline constexpr int64_t kGgufContext = 64;

// Rows of most matrices are multiples of 32.
inline ModelConfig gguf_llama() {
  return read_model_config({{"layers", 2},
                            {"width", 64},
                            {"heads", 4},
                            {"kv_heads", 2},
                            {"ffn_width", 96},
                            {"norm_eps", 1e-5},
                            {"rope_theta", 500.0},
                            {"init_std", 0.2}});
}

inline ModelConfig gguf_kimi(const Json& changes = Json::object()) {
  Json json = {{"layers", 3},
               {"width", 64},
               {"heads", 4},
               {"ffn_width", 96},
               {"norm_eps", 1e-6},
               {"init_std", 0.2},
               {"attention", {"delta", "delta", "latent"}},
               {"delta_attention", {{"head_width", 32}}},
               {"latent_attention",
                {{"kv_rank", 32}, {"key_width", 24}, {"shared_key_width", 8}, {"value_width", 16}}},
               {"experts", {{"count", 4}, {"chosen", 2}, {"width", 32}, {"scaling", 2.446}}},
               {"depth_mixing", residual()}};
  json.merge_patch(changes);
  return read_model_config(json);
}

inline ModelConfig gguf_k3() {
  return gguf_kimi({{"delta_attention", {{"output_gate", "full_rank"}, {"gate_lower_bound", -5.0}}},
                    {"latent_attention", {{"q_rank", 32}, {"output_gate", true}}},
                    {"experts", {{"latent_width", 32}}},
                    {"activation", {{"type", "situ"}}},
                    {"depth_mixing", block_attn_res(4)}});
}

// Llama's relatives.
inline ModelConfig gguf_relative(const Json& changes) {
  Json json = write_config(gguf_llama());
  json.merge_patch(changes);
  return read_model_config(json);
}

inline ModelConfig gguf_gemma3() {
  return gguf_relative({{"head_width", 24},
                        {"attention", {"sliding_window", "grouped_query"}},
                        {"grouped_query", {{"qk_norm", true}}},
                        {"sliding_window", {{"window", 3}, {"rope_theta", 20.0}}},
                        {"rope_scaling", {{"type", "linear"}, {"factor", 8.0}}},
                        {"activation", {{"type", "gelu_tanh"}}},
                        {"output_norm", true},
                        {"embedding_scale", 8.0}});
}

inline ModelConfig gguf_smollm3() {
  return gguf_relative(
      {{"layers", 4}, {"attention", {"grouped_query", "grouped_query", "grouped_query", "nope"}}});
}

inline Json gguf_yarn() {
  return {{"type", "yarn"}, {"factor", 4.0}, {"original_context", 8}};
}

inline ModelConfig gguf_deepseek2(const Json& changes = Json::object()) {
  Json json = {{"layers", 2},
               {"attention", {"latent"}},
               {"delta_attention", write_config(DeltaAttentionSettings())},
               {"latent_attention", {{"rotary", true}, {"q_rank", 32}}},
               {"experts", {{"count", 8}, {"groups", 4}, {"chosen_groups", 2}}}};
  json.merge_patch(changes);
  return gguf_kimi(json);
}

inline ModelConfig gguf_qwen3moe() {
  return gguf_relative({{"grouped_query", {{"qk_norm", true}}},
                        {"experts",
                         {{"count", 4},
                          {"chosen", 2},
                          {"width", 32},
                          {"shared", 0},
                          {"dense_layers", 0},
                          {"scores", "softmax"}}}});
}

inline ModelConfig gguf_gpt_oss() {
  Json json = write_config(gguf_qwen3moe());
  json.merge_patch(
      {{"attention", {"sliding_window", "grouped_query"}},
       {"grouped_query",
        {{"qk_norm", false}, {"qkv_bias", true}, {"output_bias", true}, {"sinks", true}}},
       {"experts", {{"router_bias", true}, {"bias", true}}},
       {"activation", {{"type", "swiglu_oai"}}}});
  return read_model_config(json);
}

inline Transformer perturbed_model(const ModelConfig& config) {
  return perturbed(Transformer(config, kSmallVocabulary, /*seed=*/1, at::kFloat));
}

inline std::filesystem::path saved_gguf(const Transformer& model, const std::string& type = "f32") {
  const std::filesystem::path path = fresh_folder("gguf") / "model.gguf";
  save_gguf(
      model, path, kGgufContext,
      {{"tokenizer.ggml.bos_token_id", uint32_t{1}}, {"tokenizer.ggml.eos_token_id", uint32_t{2}}},
      gguf_file_type(type));
  return path;
}

inline std::unique_ptr<Transformer> loaded_gguf(const std::filesystem::path& path,
                                                const Precision& precision = {},
                                                SiteRange sites = {}) {
  const GgufFile file(path);
  const GgufConfig config = read_gguf_config(file);
  return load_gguf(file, config, config.stored.model, precision, sites);
}

inline at::Tensor log_probabilities(const Transformer& model) {
  const at::Tensor ids = random_ids(2, 13);
  return model.log_probabilities(ids.narrow(1, 0, 12), ids.narrow(1, 1, 12));
}

inline double difference(const Transformer& a, const Transformer& b) {
  return (log_probabilities(a) - log_probabilities(b)).abs().max().item<double>();
}

}  // namespace attnres::testing
