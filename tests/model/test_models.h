// Small models whose depth weights matter.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "attnres/model/transformer.h"
#include "attnres/support/random.h"

namespace attnres {

inline ModelConfig small_config(const Json& depth_mixing, int64_t layers = 3) {
  return read_model_config({{"layers", layers},
                            {"width", 16},
                            {"heads", 4},
                            {"kv_heads", 2},
                            {"ffn_width", 24},
                            {"init_std", 0.2},
                            {"depth_mixing", depth_mixing}});
}

inline Json residual() {
  return {{"type", "residual"}};
}
inline Json full_attn_res() {
  return {{"type", "attn_res"}};
}
inline Json block_attn_res(int64_t size) {
  return {{"type", "block_attn_res"}, {"block_size", size}};
}

// Adds noise of standard deviation `scale` to all parameters of a kind.
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

// Pseudo-queries that spread the depth weights, and gains that are not one.
inline void perturb(const Transformer& model) {
  perturb(model, ParameterKind::pseudo_query, 1.0);
  perturb(model, ParameterKind::norm_gain, 0.2);
}

inline at::Tensor random_ids(int64_t batch, int64_t tokens, int64_t vocab_size, uint64_t seed = 5) {
  const RandomStream random(seed, "ids");
  at::Tensor ids = at::empty({batch, tokens}, at::kLong);
  for (int64_t i = 0; i < ids.numel(); ++i) {
    ids.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(vocab_size, i));
  }
  return ids;
}

}  // namespace attnres
