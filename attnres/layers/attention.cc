#include "attnres/layers/attention.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "attnres/layers/causal_attention.h"
#include "attnres/layers/earlier_tokens.h"
#include "attnres/ops/rotary/rotary.h"

namespace attnres {
namespace {

// Of the positions of the spans' tokens; where all spans are alike, of one span, whose rows repeat.
RotaryTable rotary_of(const Spans& spans, const AttentionShape& shape, at::ScalarType dtype) {
  const std::vector<Span>& all = spans.all();
  const auto table_of = [&](const Span& span) {
    return rotary_table(span.position, span.tokens, shape.head_width, shape.rope_theta, dtype);
  };
  const bool alike = std::all_of(all.begin(), all.end(), [&](const Span& span) {
    return span.position == all[0].position && span.tokens == all[0].tokens;
  });
  if (alike) return table_of(all[0]);
  std::vector<at::Tensor> cosines, sines;
  for (const Span& span : all) {
    const RotaryTable table = table_of(span);
    cosines.push_back(table.cosine);
    sines.push_back(table.sine);
  }
  return {at::cat(cosines), at::cat(sines)};
}

at::Tensor turned(const at::Tensor& x_THK, const RotaryTable& table) {
  return apply_rotary(x_THK.unflatten(0, {-1, table.cosine.size(0)}), table).flatten(0, 1);
}

}  // namespace

Attention::Attention(const AttentionShape& shape, int site, ParameterRegistry& parameters)
    : shape_(shape), activations_(parameters.precision().activations) {
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
  const std::shared_ptr<const Spans> spans = spans_of(context, input.x.size(0));
  const RotaryTable rotary = rotary_of(*spans, shape_, input.x.scalar_type());
  const auto by_head = [&](const at::Tensor& projected) {
    return projected.unflatten(-1, {-1, shape_.head_width});
  };
  const std::vector<at::Tensor> qkv = qkv_proj_(input.x, input.own_inputs());
  AttentionHeads heads = {by_head(qkv[0]), by_head(qkv[1]), by_head(qkv[2])};
  if (input.adapt_heads) input.adapt_heads(heads);
  const auto attend = [](const at::Tensor& q_BTHK, const std::vector<at::Tensor>& kv_BNHK) {
    return causal_attention(q_BTHK.transpose(1, 2), kv_BNHK[0].transpose(1, 2),
                            kv_BNHK[1].transpose(1, 2))
        .transpose(1, 2);
  };
  const at::Tensor q = turned(heads.q, rotary), k = turned(heads.k, rotary);
  const at::Tensor o_THK =
      reads_pages(*spans, q) ? with_pages(*spans, context.layer, q, k, heads.v)
                             : with_earlier_tokens(*spans, context.layer, q, {k, heads.v}, attend);
  return {o_proj_(o_THK.flatten(1))};
}

SublayerCost Attention::cost(int64_t context) const {
  const auto q = static_cast<double>(shape_.heads * shape_.head_width);
  const auto kv = static_cast<double>(shape_.kv_heads * shape_.head_width);
  const auto heads = static_cast<double>(shape_.heads);
  // Half of the T x T scores count, of two products each. Queries, keys, values, what attention
  // gives, and its normaliser are kept.
  return {.multiply_adds = static_cast<double>(context) * q, .kept = 2 * q + 2 * kv + heads};
}

std::vector<KeptTensor> Attention::kept() const {
  const std::vector<int64_t> sizes = {shape_.kv_heads, shape_.head_width};
  return {{.name = "keys", .sizes = sizes, .dtype = activations_},
          {.name = "values", .sizes = sizes, .dtype = activations_}};
}

}  // namespace attnres
