// Small models whose every parameter matters.
#pragma once

#include <ATen/ATen.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>
#include <vector>

#include "attnres/model/transformer.h"
#include "attnres/support/random.h"

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
    if (p.kind != kind) continue;
    const RandomStream random(99, fmt::format("perturb.{}.{}", p.site, p.role));
    at::Tensor noise = at::empty(p.tensor.sizes(), at::kDouble);
    for (int64_t i = 0; i < noise.numel(); ++i) {
      noise.mutable_data_ptr<double>()[i] = scale * random.normal(i);
    }
    p.tensor.detach().add_(noise.to(p.tensor.scalar_type()));
  }
}

struct SmallModelOptions {
  int64_t layers = 3;
  bool tied = false;
  int64_t vocab_size = kSmallVocabulary;
  at::ScalarType dtype = at::kDouble;
};

// With pseudo-queries that spread the depth weights, and gains that are not one.
inline Transformer small_model(const Json& depth_mixing, const SmallModelOptions& options = {}) {
  ModelConfig config = small_config(depth_mixing, options.layers);
  config.tie_embeddings = options.tied;
  Transformer model(config, options.vocab_size, /*seed=*/1, options.dtype);
  perturb(model, ParameterKind::pseudo_query, 1.0);
  perturb(model, ParameterKind::norm_gain, 0.2);
  return model;
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
