// Small models whose every parameter matters.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

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
// Blocks of 4 sublayers: the last of the 6 is short.
inline Json block_attn_res() {
  return {{"type", "block_attn_res"}, {"block_size", 4}};
}

// Three layers, grouped-query attention, and parameters far from their start: gains of 0.5 to 1.5,
// depth weights and logits that are not uniform.
inline std::unique_ptr<Transformer> small_model(const Json& depth_mixing,
                                                at::ScalarType dtype = at::kDouble,
                                                bool tied = false,
                                                int64_t vocab_size = kSmallVocabulary) {
  const ModelConfig config = read_model_config({{"layers", 3},
                                                {"width", 32},
                                                {"heads", 4},
                                                {"kv_heads", 2},
                                                {"ffn_width", 48},
                                                {"norm_eps", 1e-5},
                                                {"rope_theta", 500.0},
                                                {"tie_embeddings", tied},
                                                {"depth_mixing", depth_mixing}});
  auto model = std::make_unique<Transformer>(config, vocab_size, /*seed=*/1, dtype);
  const at::NoGradGuard no_grad;
  for (const Parameter& parameter : model->parameters().all()) {
    const RandomStream random(2, parameter.role + std::to_string(parameter.site));
    at::Tensor values = at::empty(parameter.tensor.sizes(), at::kDouble);
    for (int64_t i = 0; i < values.numel(); ++i) {
      values.mutable_data_ptr<double>()[i] = parameter.kind == ParameterKind::norm_gain
                                                 ? 0.5 + random.uniform(i)
                                                 : 0.4 * random.normal(i);
    }
    at::Tensor tensor = parameter.tensor;
    tensor.copy_(values);
  }
  return model;
}

// ids_BT between 0 and the vocabulary's size.
inline at::Tensor random_ids(int64_t batch, int64_t tokens, uint64_t seed = 3,
                             int64_t vocab_size = kSmallVocabulary) {
  at::Tensor ids = at::empty({batch, tokens}, at::kLong);
  const RandomStream random(seed, "ids");
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ids.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(vocab_size, i));
  }
  return ids;
}

inline std::vector<int32_t> as_vector(const at::Tensor& ids) {
  const at::Tensor flat = ids.contiguous();
  const int64_t* data = flat.const_data_ptr<int64_t>();
  return {data, data + flat.numel()};
}

}  // namespace attnres::testing
