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
  const int64_t d = shape.width;
  const int64_t q = shape.heads * shape.head_width, kv = shape.kv_heads * shape.head_width;
  const auto normal = [&](double gain) { return Init::normal(shape.init_std * gain); };
  const double gain = shape.needs.init_gain;
  qkv_proj_ = LinearGroup(parameters, site, d,
                          {{"q_proj", q, normal(1), Shard::outputs},
                           {"k_proj", kv, normal(1), Shard::outputs},
                           {"v_proj", kv, normal(gain), Shard::outputs}});
  o_proj_ = Linear(parameters, site, q,
                   {"o_proj", d, normal(gain * shape.needs.output_init_gain), Shard::inputs});
}

SublayerOutput Attention::forward(const SublayerInput& input,
                                  const SequenceContext& context) const {
  const at::Tensor& x_BTD = input.x;
  const int64_t B = x_BTD.size(0), T = x_BTD.size(1);
  const RotaryTable rotary =
      rotary_table(context.position, T, shape_.head_width, shape_.rope_theta, x_BTD.scalar_type());
  const auto by_head = [&](const at::Tensor& projected) {
    return projected.reshape({B, T, projected.size(-1) / shape_.head_width, shape_.head_width});
  };
  const std::vector<at::Tensor> qkv = qkv_proj_(x_BTD, input.own_inputs());
  AttentionHeads heads = {by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2])};
  if (input.adapt_heads) input.adapt_heads(heads);
  const at::Tensor q_BHTK = apply_rotary(heads.q, rotary).transpose(1, 2);
  at::Tensor k_BHTK = apply_rotary(heads.k, rotary).transpose(1, 2);
  at::Tensor v_BHTK = heads.v.transpose(1, 2);

  if (context.cache != nullptr) {
    auto& cache = static_cast<KeyValueCache&>(*context.cache);
    std::tie(k_BHTK, v_BHTK) = cache.append(k_BHTK, v_BHTK);
  }
  const at::Tensor o_BHTK = causal_attention(q_BHTK, k_BHTK, v_BHTK);
  return {o_proj_(o_BHTK.transpose(1, 2).flatten(2))};
}

SublayerCost Attention::cost(int64_t context) const {
  const auto q = static_cast<double>(shape_.heads * shape_.head_width);
  const auto kv = static_cast<double>(shape_.kv_heads * shape_.head_width);
  const auto heads = static_cast<double>(shape_.heads);
  // Half of the T x T scores count, of two products each. Queries, keys, values, what attention
  // gives, and its normaliser are kept.
  return {.multiply_adds = static_cast<double>(context) * q, .kept = 2 * q + 2 * kv + heads};
}

std::unique_ptr<SequenceCache> Attention::make_cache(int64_t batch, int64_t capacity) const {
  auto cache = std::make_unique<KeyValueCache>();
  const std::vector<int64_t> shape = {batch, shape_.kv_heads, capacity, shape_.head_width};
  const at::TensorOptions options = o_proj_.weight().options().requires_grad(false);
  cache->keys_BHTK = at::zeros(shape, options);
  cache->values_BHTK = at::zeros(shape, options);
  return cache;
}

}  // namespace attnres
