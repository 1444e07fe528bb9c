#include "attnres/layers/attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

#include <cmath>

#include "attnres/layers/causal_attention.h"
#include "attnres/layers/earlier_tokens.h"
#include "attnres/ops/rms_norm/rms_norm.h"

namespace attnres {

Attention::Attention(const AttentionShape& shape, const LayerPlace& place,
                     ParameterRegistry& parameters)
    : shape_(shape), norm_eps_(place.norm_eps), activations_(parameters.precision().activations) {
  const int64_t q = shape.heads * shape.head_width, kv = shape.kv_heads * shape.head_width;
  qkv_proj_ = LinearGroup(parameters, place.site, place.width,
                          {{"q_proj", q, place.plain_init(), Shard::outputs},
                           {"k_proj", kv, place.plain_init(), Shard::outputs},
                           {"v_proj", kv, place.inner_init(), Shard::outputs}});
  o_proj_ =
      Linear(parameters, place.site, q, {"o_proj", place.width, place.last_init(), Shard::inputs});
  const auto add_bias = [&](const char* role, int64_t outputs, Shard shard = Shard::outputs) {
    return parameters.add(place.site, role, ParameterKind::bias, {outputs}, Init::zeros(), shard);
  };
  if (shape.settings.qkv_bias) {
    q_bias_ = add_bias("q_bias", q);
    k_bias_ = add_bias("k_bias", kv);
    v_bias_ = add_bias("v_bias", kv);
  }
  if (shape.settings.sinks) sinks_ = add_bias("sinks", shape.heads);
  if (shape.settings.output_bias) {
    const at::Tensor bias = add_bias("o_bias", place.width, Shard::none);
    if (parameters.part().rank == 0) o_bias_ = bias;
  }
  const auto add_norm = [&](const char* role) {
    return parameters.add(place.site, role, ParameterKind::norm_gain, {shape.head_width},
                          Init::ones());
  };
  if (shape.settings.qk_norm) {
    q_norm_ = add_norm("q_layernorm");
    k_norm_ = add_norm("k_layernorm");
  }
  shape_.heads /= parameters.part().size;
  shape_.kv_heads /= parameters.part().size;
}

AttentionHeads Attention::heads_of(const SublayerInput& input) const {
  const std::vector<at::Tensor> qkv = qkv_proj_(input.x, input.own_inputs());
  const auto by_head = [&](const at::Tensor& projected, const at::Tensor& bias) {
    const at::Tensor x =
        bias.defined() ? at::add(projected, bias.to(projected.scalar_type())) : projected;
    return x.unflatten(-1, {-1, shape_.head_width});
  };
  AttentionHeads heads = {by_head(qkv[0], q_bias_), by_head(qkv[1], k_bias_),
                          by_head(qkv[2], v_bias_)};
  if (shape_.settings.qk_norm) {
    heads.q = rms_norm(heads.q, q_norm_, norm_eps_);
    heads.k = rms_norm(heads.k, k_norm_, norm_eps_);
  }
  if (input.adapt_heads) input.adapt_heads(heads);
  if (shape_.settings.score_scale > 0) {
    heads.q =
        heads.q * (shape_.settings.score_scale * std::sqrt(static_cast<double>(shape_.head_width)));
  }
  return heads;
}

SublayerOutput Attention::forward(const SublayerInput& input,
                                  const SequenceContext& context) const {
  const std::shared_ptr<const Spans> spans = spans_of(context, input.x.size(0));
  auto [q, k, v] = heads_of(input);
  if (shape_.rotary) {
    q = spans->turned(q, *shape_.rotary);
    k = spans->turned(k, *shape_.rotary);
  }
  const auto attend = [&](const at::Tensor& q_BTHK, const std::vector<at::Tensor>& kv_BNHK) {
    return causal_attention(q_BTHK.transpose(1, 2), kv_BNHK[0].transpose(1, 2),
                            kv_BNHK[1].transpose(1, 2), spans->masks(), shape_.window, sinks_)
        .transpose(1, 2);
  };
  const at::Tensor o_THK = reads_pages(*spans, q)
                               ? with_pages(*spans, context.layer, q, k, v, shape_.window, sinks_)
                               : with_earlier_tokens(*spans, context.layer, q, {{k}, {v}}, attend);
  const at::Tensor y_TD = o_proj_(o_THK.flatten(1));
  return {o_bias_.defined() ? at::add(y_TD, o_bias_.to(y_TD.scalar_type())) : y_TD};
}

double Attention::seen_keys(int64_t context) const {
  const auto T = static_cast<double>(context), window = static_cast<double>(shape_.window);
  return shape_.window == 0 || window >= T ? T / 2 : window - window * window / (2 * T);
}

SublayerCost Attention::cost(int64_t context) const {
  const auto q = static_cast<double>(shape_.heads * shape_.head_width);
  const auto kv = static_cast<double>(shape_.kv_heads * shape_.head_width);
  const auto heads = static_cast<double>(shape_.heads);
  // Two products of each key that is seen. Queries, keys, values, what attention gives, and its
  // normaliser are kept; before a norm, its inputs too.
  const double normed = shape_.settings.qk_norm ? q + kv : 0;
  return {.multiply_adds = 2 * seen_keys(context) * q, .kept = 2 * q + 2 * kv + heads + normed};
}

std::vector<KeptTensor> Attention::kept() const {
  const std::vector<int64_t> sizes = {shape_.kv_heads, shape_.head_width};
  return {{.name = "keys", .sizes = sizes, .dtype = activations_},
          {.name = "values", .sizes = sizes, .dtype = activations_}};
}

}  // namespace attnres
