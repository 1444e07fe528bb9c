#include "attnres/layers/latent_attention.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "attnres/ops/head_maps/head_maps.h"
#include "attnres/ops/matmul/matmul.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr double kNormEps = 1e-6;

// [B, T, H, N] as one matrix per head, [H, B T, N], and back.
at::Tensor by_head(const at::Tensor& x_BTHN) {
  return x_BTHN.permute({2, 0, 1, 3}).flatten(1, 2);
}
at::Tensor by_token(const at::Tensor& x_HMN, int64_t batch) {
  return x_HMN.unflatten(1, {batch, -1}).permute({1, 2, 0, 3});
}

// What some queries [B, T, H, K] give, of which the first is the sequence's token `first`, with
// each head's maps to keys and to values [H, width, R]: [B, T, H, V].
at::Tensor attend_latents(const at::Tensor& q_BTHK, const at::Tensor& latents_BNC, int64_t first,
                          const std::vector<at::Tensor>& kv_b_H,
                          const LatentAttentionSettings& settings, const CausalMasks& masks) {
  const int64_t B = q_BTHK.size(0), T = q_BTHK.size(1), H = q_BTHK.size(2);
  const std::vector<at::Tensor> q =
      q_BTHK.split_with_sizes({settings.key_width, settings.shared_key_width}, -1);
  const at::Tensor q_BTHR = by_token(at::bmm(by_head(q[0]), kv_b_H[0]), B);
  const double scale = 1 / std::sqrt(static_cast<double>(q_BTHK.size(-1)));
  // All heads read the same latents: their queries are the rows of one matrix.
  const at::Tensor q_BMC = scale * at::cat({q_BTHR, q[1]}, -1).flatten(1, 2);
  // Those that the last of the queries sees.
  const at::Tensor seen_BNC = latents_BNC.narrow(1, 0, first + T);
  const at::Tensor scores_BTHN = at::bmm(q_BMC, seen_BNC.transpose(1, 2)).unflatten(1, {T, H});
  if (T > 1) {
    // All of them see the tokens before the first.
    const at::Tensor later_T1T =
        masks.mask(T, T, /*window=*/0, q_BTHK.device()).logical_not().unsqueeze(1);
    scores_BTHN.narrow(-1, first, T)
        .masked_fill_(later_T1T, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor weights_BMN = at::softmax(scores_BTHN, -1).flatten(1, 2);
  const at::Tensor sums_BMR = at::bmm(weights_BMN, seen_BNC.narrow(-1, 0, settings.kv_rank));
  const at::Tensor sums_HMR = by_head(sums_BMR.unflatten(1, {T, H}));
  return by_token(at::bmm(sums_HMR, kv_b_H[1].transpose(1, 2)), B);
}

}  // namespace

void LatentAttentionSettings::resolve(int64_t width, int64_t heads, const std::string& path) {
  const auto fill = [&](const char* key, int64_t& value, int64_t default_value) {
    if (value == 0) value = default_value;
    require_usage(value > 0, "{}.{}: the default is less than 1 for this model, give it", path,
                  key);
  };
  fill("kv_rank", kv_rank, width / 2);
  fill("key_width", key_width, width / heads);
  fill("shared_key_width", shared_key_width, key_width / 2);
  fill("value_width", value_width, key_width);
  require_usage(!rotary || shared_key_width % 2 == 0,
                "{}.shared_key_width: rotary positions need an even one, got {}", path,
                shared_key_width);
}

LatentAttention::LatentAttention(const LatentAttentionSettings& settings, int64_t heads,
                                 const LayerPlace& place, ParameterRegistry& parameters,
                                 RotaryFrequencies frequencies)
    : settings_(settings),
      heads_(heads / parameters.part().size),
      frequencies_(std::move(frequencies)),
      activations_(parameters.precision().activations) {
  require_usage(place.needs.inputs() == 1,
                "latent attention has no separate inputs for queries, keys and values, which this "
                "depth mixing needs: choose another attention or another depth mixing");
  require_usage(!place.needs.adapt_heads,
                "latent attention has no keys and values of its own that a depth mixing could "
                "change, which this one needs: choose another attention or another depth mixing");
  const int site = place.site;
  const auto add_norm = [&](const char* role, int64_t size) {
    return parameters.add(site, role, ParameterKind::norm_gain, {size}, Init::ones());
  };
  const LatentAttentionSettings& s = settings_;
  const int64_t query = heads * (s.key_width + s.shared_key_width), value = heads * s.value_width;
  const Init plain = place.plain_init(), inner = place.inner_init();
  std::vector<MatrixRole> roles;
  if (s.q_rank > 0) {
    roles.push_back({"q_a_proj", s.q_rank, plain});
  } else {
    roles.push_back({"q_proj", query, plain, Shard::outputs});
  }
  roles.push_back({"kv_a_proj_with_mqa", s.kv_rank + s.shared_key_width, plain});
  if (s.output_gate) roles.push_back({"g_proj", value, inner, Shard::outputs});
  input_proj_ = LinearGroup(parameters, site, place.width, roles);
  if (s.q_rank > 0) {
    q_a_norm_ = add_norm("q_a_layernorm", s.q_rank);
    q_b_proj_ = Linear(parameters, site, s.q_rank, {"q_b_proj", query, plain, Shard::outputs});
  }
  kv_a_norm_ = add_norm("kv_a_layernorm", s.kv_rank);
  // Each head's rows are first of the key map, then of the value map, which alone has the gain.
  const int64_t key_size = s.key_width * s.kv_rank, value_size = s.value_width * s.kv_rank;
  const auto keys_or_values = [=](const RandomStream& random, int64_t i) {
    return (i % (key_size + value_size) < key_size ? plain : inner).value(random, i);
  };
  kv_b_proj_ = Linear(
      parameters, site, s.kv_rank,
      {"kv_b_proj", heads * (s.key_width + s.value_width), {keys_or_values}, Shard::outputs});
  o_proj_ =
      Linear(parameters, site, value, {"o_proj", place.width, place.last_init(), Shard::inputs});
}

SublayerOutput LatentAttention::forward(const SublayerInput& input,
                                        const SequenceContext& context) const {
  const at::Tensor& x_TD = input.x;
  const std::shared_ptr<const Spans> spans = spans_of(context, x_TD.size(0));
  const int64_t rank = settings_.kv_rank, shared_width = settings_.shared_key_width;
  const std::vector<at::Tensor> projected = input_proj_(x_TD);
  const at::Tensor q =
      q_b_proj_.defined() ? q_b_proj_(rms_norm(projected[0], q_a_norm_, kNormEps)) : projected[0];
  const std::vector<at::Tensor> kv_a = projected[1].split_with_sizes({rank, shared_width}, -1);
  const auto [q_THK, key_TS] = with_positions(*spans, {q.unflatten(-1, {heads_, -1}), kv_a[1]});
  const KeptParts latents_TC = {rms_norm(kv_a[0], kv_a_norm_, kNormEps), key_TS};
  const at::Tensor o_THV = reads_pages(*spans, q_THK)
                               ? attend_pages(*spans, context.layer, q_THK, latents_TC)
                               : attend(*spans, context.layer, q_THK, latents_TC);
  at::Tensor o_TP = o_THV.flatten(1);
  if (settings_.output_gate) o_TP = o_TP * at::sigmoid(projected[2]);
  return {o_proj_(o_TP)};
}

LatentAttention::Shared LatentAttention::with_positions(const Spans& spans,
                                                        const Shared& plain) const {
  Shared shared = plain;
  const int64_t keys = settings_.key_width, width = settings_.shared_key_width;
  if (settings_.rotary) {
    const at::Tensor q_THS = spans.turned(plain.q_THK.narrow(2, keys, width), frequencies_);
    shared.q_THK = at::cat({plain.q_THK.narrow(2, 0, keys), q_THS}, 2);
    shared.key_TS = spans.turned(plain.key_TS.unsqueeze(1), frequencies_).squeeze(1);
  }
  if (settings_.score_scale > 0) {
    const double usual = std::sqrt(static_cast<double>(keys + width));
    shared.q_THK = shared.q_THK * (settings_.score_scale * usual);
  }
  return shared;
}

at::Tensor LatentAttention::attend(const Spans& spans, int layer, const at::Tensor& q_THK,
                                   const KeptParts& latents_TC) const {
  return with_earlier_tokens(
      spans, layer, q_THK, {latents_TC},
      [&](const at::Tensor& q_BTHK, const std::vector<at::Tensor>& latents_BNC) {
        const LatentHeads heads = {q_BTHK, latents_BNC[0], kv_b_proj_.weight_for(latents_BNC[0])};
        return absorbing_is_cheaper(q_BTHK.size(1), latents_BNC[0].size(1), settings_)
                   ? attend_absorbed(heads, settings_, spans.masks())
                   : attend_expanded(heads, settings_, spans.masks());
      });
}

// Absorbed, a query at a time, where the latents lie.
at::Tensor LatentAttention::attend_pages(const Spans& spans, int layer, const at::Tensor& q_THK,
                                         const KeptParts& latents_TC) const {
  const int64_t keys = settings_.key_width, shared = settings_.shared_key_width;
  const at::Tensor kv_b = kv_b_proj_.weight_for(latents_TC[0]).values.unflatten(0, {heads_, -1});
  const at::Tensor q_THR = transposed_head_maps(q_THK.narrow(2, 0, keys), kv_b.narrow(1, 0, keys));
  const at::Tensor q_THC = at::cat({q_THR, q_THK.narrow(2, keys, shared)}, 2);
  const double scale = 1 / std::sqrt(static_cast<double>(keys + shared));
  const at::Tensor sums_THR =
      with_latent_pages(spans, layer, q_THC, latents_TC, settings_.kv_rank, scale);
  return head_maps(sums_THR, kv_b.narrow(1, keys, settings_.value_width));
}

SublayerCost LatentAttention::cost(int64_t context) const {
  const LatentAttentionSettings& s = settings_;
  const auto heads = static_cast<double>(heads_), values = static_cast<double>(s.value_width);
  const auto keys = static_cast<double>(s.key_width + s.shared_key_width);
  // Half of the T x T scores count. Queries; keys and values as they come out of their map and as
  // attention reads them; its output, twice with a gate beside it; the latents are kept.
  return {.multiply_adds = heads * static_cast<double>(context) * (keys + values) / 2,
          .kept = heads * (3 * keys + (s.output_gate ? 5 : 3) * values + 1) +
                  static_cast<double>(2 * s.kv_rank + 2 * s.q_rank)};
}

std::vector<KeptTensor> LatentAttention::kept() const {
  return {{.name = "latents",
           .sizes = {settings_.kv_rank + settings_.shared_key_width},
           .dtype = activations_}};
}

// Multiply-adds of one head and sequence. Expanded: every token's key and value from its latent,
// then scores and sums over them. Absorbed: the call's queries into the latent and its sums out of
// it; scores and sums over latents, which are longer.
bool absorbing_is_cheaper(int64_t tokens, int64_t keys, const LatentAttentionSettings& settings) {
  const int64_t rank = settings.kv_rank, shared = settings.shared_key_width;
  const int64_t own = settings.key_width + settings.value_width;
  const int64_t expanded = keys * rank * own + tokens * keys * (own + shared);
  const int64_t absorbed = tokens * rank * own + tokens * keys * (2 * rank + shared);
  return tokens < keys && absorbed < expanded;
}

at::Tensor attend_expanded(const LatentHeads& heads, const LatentAttentionSettings& settings,
                           const CausalMasks& masks) {
  const auto& [q_BTHK, latents_BNC, kv_b_proj] = heads;
  const int64_t H = q_BTHK.size(2);
  const std::vector<at::Tensor> latents =
      latents_BNC.split_with_sizes({settings.kv_rank, settings.shared_key_width}, -1);
  const std::vector<at::Tensor> kv_BNH =
      linear_map(latents[0], kv_b_proj)
          .unflatten(-1, {H, -1})
          .split_with_sizes({settings.key_width, settings.value_width}, -1);
  const at::Tensor shared_BNHS = latents[1].unsqueeze(2).expand({-1, -1, H, -1});
  const at::Tensor k_BNHK = at::cat({kv_BNH[0], shared_BNHS}, -1);
  // The kernel that never holds all scores wants values as wide as keys.
  const int64_t missing = k_BNHK.size(-1) - settings.value_width;
  const at::Tensor v_BNHV = missing > 0 ? at::constant_pad_nd(kv_BNH[1], {0, missing}) : kv_BNH[1];

  const at::Tensor o_BHTV = causal_attention(q_BTHK.transpose(1, 2), k_BNHK.transpose(1, 2),
                                             v_BNHV.transpose(1, 2), masks);
  return o_BHTV.narrow(-1, 0, settings.value_width).transpose(1, 2);
}

at::Tensor attend_absorbed(const LatentHeads& heads, const LatentAttentionSettings& settings,
                           const CausalMasks& masks, int64_t most_scores) {
  const auto& [q_BTHK, latents_BNC, kv_b_proj] = heads;
  const int64_t B = q_BTHK.size(0), T = q_BTHK.size(1), H = q_BTHK.size(2), N = latents_BNC.size(1);
  // A copy has no gradient.
  const at::Tensor weight = records({kv_b_proj.parameter})
                                ? kv_b_proj.parameter.to(kv_b_proj.values.scalar_type())
                                : kv_b_proj.values;
  const std::vector<at::Tensor> kv_b_H =
      weight.unflatten(0, {H, -1}).split_with_sizes({settings.key_width, settings.value_width}, 1);
  const int64_t block = std::max<int64_t>(1, most_scores / (B * H * N));
  std::vector<at::Tensor> o_BTHV;
  for (int64_t at = 0; at < T; at += block) {
    const int64_t count = std::min(block, T - at);
    o_BTHV.push_back(attend_latents(q_BTHK.narrow(1, at, count), latents_BNC, N - T + at, kv_b_H,
                                    settings, masks));
  }
  return o_BTHV.size() == 1 ? o_BTHV[0] : at::cat(o_BTHV, 1);
}

}  // namespace attnres
