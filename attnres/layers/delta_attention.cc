#include "attnres/layers/delta_attention.h"

#include <ATen/ATen.h>

#include <cmath>

#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"
#include "attnres/ops/rms_norm/rms_norm.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/config.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;

constexpr double kHeadNormEps = 1e-6;

struct DeltaCache : SequenceCache {
  Tensor q_inputs, k_inputs, v_inputs;  // of the convolutions: the last [B, conv_width - 1, P]
  Tensor state_BHKV;
};

// Of x_BTP over time, each channel with its own kernel_PW, whose last number meets the token
// itself. `earlier` are the W - 1 inputs before the first and become those before the next call's;
// undefined: zeros, and nothing is kept.
Tensor causal_convolution(const Tensor& x_BTP, const Tensor& kernel_PW, Tensor* earlier) {
  const int64_t T = x_BTP.size(1), W = kernel_PW.size(1);
  const Tensor inputs = earlier != nullptr ? at::cat({*earlier, x_BTP}, 1)
                                           : at::constant_pad_nd(x_BTP, {0, 0, W - 1, 0});
  if (earlier != nullptr) *earlier = inputs.narrow(1, T, W - 1).clone();
  const std::vector<Tensor> taps = kernel_PW.unbind(1);
  Tensor y = inputs.narrow(1, 0, T) * taps[0];
  for (int64_t w = 1; w < W; ++w) y = at::addcmul(y, inputs.narrow(1, w, T), taps[w]);
  return y;
}

// Per head, of length one.
Tensor normalized(const Tensor& x_BTHK) {
  return x_BTHK * at::rsqrt(at::sum(x_BTHK.square(), -1, true) + kHeadNormEps);
}

// The logarithm of U(1, 16).
Init log_uniform_rates() {
  return {[](const RandomStream& random, int64_t i) {
    return std::log(1 + 15 * random.uniform(static_cast<uint64_t>(i)));
  }};
}

// The inverse softplus of a log-uniform number in [1e-3, 0.1].
Init log_uniform_steps() {
  return {[](const RandomStream& random, int64_t i) {
    const double step = std::pow(10.0, -3 + 2 * random.uniform(static_cast<uint64_t>(i)));
    return std::log(std::expm1(step));
  }};
}

}  // namespace

void DeltaAttentionSettings::resolve(int64_t width, int64_t model_heads, const std::string& path) {
  check_whole(path, "heads", heads, 0);
  check_whole(path, "head_width", head_width, 0);
  check_whole(path, "conv_width", conv_width, 1);
  if (heads == 0) heads = model_heads;
  if (head_width == 0) {
    require_usage(width % heads == 0,
                  "{}.head_width: the model's width of {} is not divisible by {} heads; give it",
                  path, width, heads);
    head_width = width / heads;
  }
  require_usage(gate_lower_bound <= 0 && std::isfinite(gate_lower_bound),
                "{}.gate_lower_bound: expected less than 0, or 0 for none, got {}", path,
                gate_lower_bound);
  require_usage(output_gate == "low_rank" || output_gate == "full_rank",
                "{}.output_gate: expected low_rank or full_rank, got {}", path, output_gate);
}

DeltaAttention::DeltaAttention(const DeltaAttentionSettings& settings, int64_t width,
                               double norm_eps, double init_std, const SublayerNeeds& needs,
                               int site, ParameterRegistry& parameters)
    : settings_(settings), norm_eps_(norm_eps) {
  require_usage(!needs.adapt_heads,
                "delta attention cannot serve this depth mixing, which changes the keys and values "
                "of attention; choose another mechanism, or attention in every layer");
  const int64_t H = settings.heads, K = settings.head_width, P = H * K, D = width;
  const auto normal = [&](double gain) { return Init::normal(init_std * gain); };
  const auto add_convolution = [&](const char* role) {
    return parameters.add(site, role, ParameterKind::convolution, {P, settings.conv_width},
                          Init::uniform(1 / std::sqrt(static_cast<double>(settings.conv_width))),
                          Shard::outputs);
  };
  // The gates are within bounds whatever their maps: init_gain, which tames the output, spares
  // them.
  const bool full_rank = settings.has_full_rank_gate();
  input_proj_ = LinearGroup(parameters, site, D,
                            {{"q_proj", P, normal(1), Shard::outputs},
                             {"k_proj", P, normal(1), Shard::outputs},
                             {"v_proj", P, normal(needs.init_gain), Shard::outputs},
                             {"f_a_proj", K, normal(1)},
                             {"b_proj", H, normal(1), Shard::outputs},
                             full_rank ? MatrixRole{"g_proj", P, normal(1), Shard::outputs}
                                       : MatrixRole{"g_a_proj", K, normal(1)}});
  q_conv_ = add_convolution("q_conv1d");
  k_conv_ = add_convolution("k_conv1d");
  v_conv_ = add_convolution("v_conv1d");
  A_log_ =
      parameters.add(site, "A_log", ParameterKind::decay, {H}, log_uniform_rates(), Shard::outputs);
  dt_bias_ = parameters.add(site, "dt_bias", ParameterKind::decay, {P}, log_uniform_steps(),
                            Shard::outputs);
  f_b_proj_ = Linear(parameters, site, K, {"f_b_proj", P, normal(1), Shard::outputs});
  if (!full_rank) {
    g_b_proj_ = Linear(parameters, site, K, {"g_b_proj", P, normal(1), Shard::outputs});
  }
  o_norm_ = parameters.add(site, "o_norm", ParameterKind::norm_gain, {K}, Init::ones());
  o_proj_ = Linear(parameters, site, P,
                   {"o_proj", D, normal(needs.init_gain * needs.output_init_gain), Shard::inputs});
}

SublayerOutput DeltaAttention::forward(const SublayerInput& input,
                                       const SequenceContext& context) const {
  const Tensor& x_BTD = input.x;
  const int64_t B = x_BTD.size(0), T = x_BTD.size(1), H = settings_.heads, K = settings_.head_width;
  auto* cache = static_cast<DeltaCache*>(context.cache);
  const auto heads = [&](const Tensor& x_BTP) { return x_BTP.reshape({B, T, H, K}); };
  const std::vector<Tensor> projected = input_proj_(x_BTD, input.own_inputs());
  const auto convolved = [&](const Tensor& x_BTP, const Tensor& kernel, Tensor* earlier) {
    return heads(at::silu(causal_convolution(x_BTP, kernel, earlier)));
  };
  const Tensor q = convolved(projected[0], q_conv_, cache ? &cache->q_inputs : nullptr);
  const Tensor k = convolved(projected[1], k_conv_, cache ? &cache->k_inputs : nullptr);
  const Tensor v = convolved(projected[2], v_conv_, cache ? &cache->v_inputs : nullptr);

  const at::ScalarType wide = compute_dtype(x_BTD);
  const Tensor rate_H1 = A_log_.to(wide).exp().unsqueeze(1);
  const Tensor step = heads(f_b_proj_(projected[3]).to(wide) + dt_bias_.to(wide));
  const Tensor log_decay = settings_.gate_lower_bound < 0
                               ? settings_.gate_lower_bound * at::sigmoid(rate_H1 * step)
                               : -rate_H1 * at::softplus(step);
  const GatedDeltaRuleOutput out =
      gated_delta_rule({.q = normalized(q.to(wide)) / std::sqrt(static_cast<double>(K)),
                        .k = normalized(k.to(wide)),
                        .v = v,
                        .log_decay = log_decay,
                        .beta = at::sigmoid(projected[4]),
                        .state = cache ? cache->state_BHKV : Tensor()});
  if (cache) cache->state_BHKV = out.state;

  const Tensor gate = g_b_proj_.defined() ? g_b_proj_(projected[5]) : projected[5];
  const Tensor o = rms_norm(out.o, o_norm_, norm_eps_) * heads(gate.sigmoid());
  return {o_proj_(o.view({B, T, H * K}))};
}

SublayerCost DeltaAttention::cost(int64_t /*context*/) const {
  constexpr double kChunk = 32;  // tokens of gated_delta_rule_chunked
  constexpr double kKept = 32;   // numbers per channel of all heads: measured
  const auto K = static_cast<double>(settings_.head_width);
  const auto P = static_cast<double>(settings_.heads * settings_.head_width);
  // Within a chunk half of the scores of q k and k k and their sums of values count, and the
  // triangular system; between chunks the state is read twice and updated.
  return {.multiply_adds = P * (3 * kChunk + 3 * K), .kept = kKept * P};
}

std::unique_ptr<SequenceCache> DeltaAttention::make_cache(int64_t batch,
                                                          int64_t /*capacity*/) const {
  const int64_t H = settings_.heads, K = settings_.head_width;
  const at::TensorOptions options = o_proj_.weight().options().requires_grad(false);
  auto cache = std::make_unique<DeltaCache>();
  for (Tensor* inputs : {&cache->q_inputs, &cache->k_inputs, &cache->v_inputs}) {
    *inputs = at::zeros({batch, settings_.conv_width - 1, H * K}, options);
  }
  cache->state_BHKV = at::zeros({batch, H, K, K}, options.dtype(compute_dtype(o_proj_.weight())));
  return cache;
}

}  // namespace attnres
