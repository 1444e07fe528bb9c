#include "attnres/layers/attention.h"

#include <ATen/ATen.h>

#include "attnres/layers/causal_attention.h"
#include "attnres/ops/rotary/rotary.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

struct KeyValueCache : SequenceCache {
  at::Tensor keys_BHTK, values_BHTK;
  int64_t length = 0;

  int64_t capacity() const { return keys_BHTK.size(2); }

  // Appends, and returns all keys and values so far.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& keys, const at::Tensor& values) {
    const int64_t tokens = keys.size(2);
    require(length + tokens <= capacity(),
            "attention: the cache holds {} tokens, {} more do not fit after {}", capacity(), tokens,
            length);
    keys_BHTK.narrow(2, length, tokens).copy_(keys);
    values_BHTK.narrow(2, length, tokens).copy_(values);
    length += tokens;
    return {keys_BHTK.narrow(2, 0, length), values_BHTK.narrow(2, 0, length)};
  }
};

}  // namespace

Attention::Attention(const AttentionShape& shape, int site, ParameterRegistry& parameters)
    : shape_(shape) {
  const int64_t d = shape.width, kv = shape.kv_heads * shape.head_width();
  const auto add = [&](const char* role, int64_t out, double gain) {
    return parameters.add(site, role, ParameterKind::matrix, {out, d},
                          Init::normal(shape.init_std * gain));
  };
  q_proj_ = add("q_proj", d, 1);
  k_proj_ = add("k_proj", kv, 1);
  v_proj_ = add("v_proj", kv, shape.needs.init_gain);
  o_proj_ = add("o_proj", d, shape.needs.init_gain * shape.needs.output_init_gain);
}

SublayerOutput Attention::forward(const SublayerInput& input,
                                  const SequenceContext& context) const {
  const at::Tensor& x_BTD = input.x;
  const int64_t B = x_BTD.size(0), T = x_BTD.size(1);
  const RotaryTable rotary = rotary_table(context.position, T, shape_.head_width(),
                                          shape_.rope_theta, x_BTD.scalar_type());
  const auto project = [&](const at::Tensor& own_input, const at::Tensor& projection) {
    return at::linear(own_input.defined() ? own_input : x_BTD, projection)
        .view({B, T, projection.size(0) / shape_.head_width(), shape_.head_width()});
  };
  AttentionHeads heads = {project(input.query, q_proj_), project(input.key, k_proj_),
                          project(input.value, v_proj_)};
  if (input.adapt_heads) input.adapt_heads(heads);
  const at::Tensor q_BHTK = apply_rotary(heads.q, rotary).transpose(1, 2);
  at::Tensor k_BHTK = apply_rotary(heads.k, rotary).transpose(1, 2);
  at::Tensor v_BHTK = heads.v.transpose(1, 2);

  if (context.cache != nullptr) {
    auto& cache = static_cast<KeyValueCache&>(*context.cache);
    std::tie(k_BHTK, v_BHTK) = cache.append(k_BHTK, v_BHTK);
  }
  const at::Tensor o_BHTK = causal_attention(q_BHTK, k_BHTK, v_BHTK);
  return {at::linear(o_BHTK.transpose(1, 2).reshape({B, T, shape_.width}), o_proj_)};
}

std::unique_ptr<SequenceCache> Attention::make_cache(int64_t batch, int64_t capacity) const {
  auto cache = std::make_unique<KeyValueCache>();
  const std::vector<int64_t> shape = {batch, shape_.kv_heads, capacity, shape_.head_width()};
  cache->keys_BHTK = at::zeros(shape, k_proj_.options().requires_grad(false));
  cache->values_BHTK = at::zeros(shape, k_proj_.options().requires_grad(false));
  return cache;
}

}  // namespace attnres
