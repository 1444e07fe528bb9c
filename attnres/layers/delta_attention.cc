#include "attnres/layers/delta_attention.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <cmath>

#include "attnres/ops/delta_attention/delta_attention.h"
#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;

// What is kept of a sequence: of each convolution its last inputs, and the state.
enum Kept : size_t { kQueryInputs, kKeyInputs, kValueInputs, kState };

// The rows of a group's tokens.
DeltaAttentionInputs inputs_of(const SpanGroup& group, const DeltaAttentionInputs& all) {
  DeltaAttentionInputs inputs = all;
  for (Tensor* x : {&inputs.inputs[0], &inputs.inputs[1], &inputs.inputs[2], &inputs.decay,
                    &inputs.beta, &inputs.gate}) {
    *x = x->narrow(0, group.first_row, static_cast<int64_t>(group.count) * group.tokens);
  }
  return inputs;
}

// What is kept of the group's sequences, where it lies.
DeltaAttentionStates kept_states(const Spans& spans, int layer, const SpanGroup& group) {
  const auto of = [&](Kept which) {
    return spans.store()->change_states(layer, which, spans, group);
  };
  return {.conv_inputs = {of(kQueryInputs), of(kKeyInputs), of(kValueInputs)},
          .states = of(kState)};
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
  if (heads == 0) heads = model_heads;
  if (head_width == 0) {
    require_usage(width % heads == 0,
                  "{}.head_width: the model's width of {} is not divisible by {} heads; give it",
                  path, width, heads);
    head_width = width / heads;
  }
}

DeltaAttention::DeltaAttention(const DeltaAttentionSettings& settings, const LayerPlace& place,
                               ParameterRegistry& parameters)
    : settings_(settings),
      norm_eps_(place.norm_eps),
      activations_(parameters.precision().activations) {
  require_usage(!place.needs.adapt_heads,
                "delta attention cannot serve this depth mixing, which changes the keys and values "
                "of attention; choose another mechanism, or attention in every layer");
  const int64_t H = settings.heads, K = settings.head_width, P = H * K, D = place.width;
  const int site = place.site;
  const Init plain = place.plain_init();
  const auto add_convolution = [&](const char* role) {
    return parameters.add(site, role, ParameterKind::convolution, {P, settings.conv_width},
                          Init::uniform(1 / std::sqrt(static_cast<double>(settings.conv_width))),
                          Shard::outputs);
  };
  // The gates are within bounds whatever their maps: init_gain, which tames the output, spares
  // them.
  const bool full_rank = settings.has_full_rank_gate();
  input_proj_ = LinearGroup(parameters, site, D,
                            {{"q_proj", P, plain, Shard::outputs},
                             {"k_proj", P, plain, Shard::outputs},
                             {"v_proj", P, place.inner_init(), Shard::outputs},
                             {"f_a_proj", K, plain},
                             {"b_proj", H, plain, Shard::outputs},
                             full_rank ? MatrixRole{"g_proj", P, plain, Shard::outputs}
                                       : MatrixRole{"g_a_proj", K, plain}});
  q_conv_ = add_convolution("q_conv1d");
  k_conv_ = add_convolution("k_conv1d");
  v_conv_ = add_convolution("v_conv1d");
  A_log_ =
      parameters.add(site, "A_log", ParameterKind::decay, {H}, log_uniform_rates(), Shard::outputs);
  dt_bias_ = parameters.add(site, "dt_bias", ParameterKind::decay, {P}, log_uniform_steps(),
                            Shard::outputs);
  f_b_proj_ = Linear(parameters, site, K, {"f_b_proj", P, plain, Shard::outputs});
  if (!full_rank) {
    g_b_proj_ = Linear(parameters, site, K, {"g_b_proj", P, plain, Shard::outputs});
  }
  o_norm_ = parameters.add(site, "o_norm", ParameterKind::norm_gain, {K}, Init::ones());
  o_proj_ = Linear(parameters, site, P, {"o_proj", D, place.last_init(), Shard::inputs});
  settings_.heads /= parameters.part().size;
}

SublayerOutput DeltaAttention::forward(const SublayerInput& input,
                                       const SequenceContext& context) const {
  const Tensor& x_TD = input.x;
  const std::shared_ptr<const Spans> spans = spans_of(context, x_TD.size(0));
  const std::vector<Tensor> projected = input_proj_(x_TD, input.own_inputs());
  const Tensor gate = g_b_proj_.defined() ? g_b_proj_(projected[5]) : projected[5];
  const DeltaAttentionInputs inputs = {.inputs = {projected[0], projected[1], projected[2]},
                                       .decay = f_b_proj_(projected[3]),
                                       .beta = projected[4],
                                       .gate = gate,
                                       .conv_PW = {q_conv_, k_conv_, v_conv_},
                                       .A_log_H = A_log_,
                                       .dt_bias_P = dt_bias_,
                                       .gain_K = o_norm_,
                                       .decay_bound = settings_.gate_lower_bound,
                                       .norm_eps = norm_eps_};
  // Decoding only: a span that is recomputed has to give the same bits in both of its passes.
  const bool at_once = spans->pool() != nullptr && has_delta_attention(inputs);
  return {o_proj_(at_once ? in_one_call(inputs, *spans, context.layer)
                          : composed(inputs, *spans, context.layer))};
}

// One operation a group of spans.
Tensor DeltaAttention::in_one_call(const DeltaAttentionInputs& all, const Spans& spans,
                                   int layer) const {
  std::vector<Tensor> results;
  for (const SpanGroup& group : spans.groups()) {
    results.push_back(delta_attention(inputs_of(group, all), kept_states(spans, layer, group)));
  }
  return results.size() == 1 ? results[0] : at::cat(results);
}

Tensor DeltaAttention::composed(const DeltaAttentionInputs& all, const Spans& spans,
                                int layer) const {
  PageStore* store = spans.store();
  return spans.by_group([&](const SpanGroup& group) {
    const auto read = [&](Kept which) { return store->read_states(layer, which, spans, group); };
    DeltaAttentionKept before;
    if (store != nullptr) {
      before = {{read(kQueryInputs), read(kKeyInputs), read(kValueInputs)}, read(kState)};
    }
    const auto count = static_cast<int64_t>(group.count);
    const auto [y, after] = delta_attention_composed(inputs_of(group, all), count, before);
    if (store != nullptr) {
      for (const Kept which : {kQueryInputs, kKeyInputs, kValueInputs}) {
        store->write_states(layer, which, spans, group, after.conv_inputs[which]);
      }
      store->write_states(layer, kState, spans, group, after.states);
    }
    return y.unflatten(0, {count, group.tokens});
  });
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

std::vector<KeptTensor> DeltaAttention::kept() const {
  using enum KeptTensor::Of;
  const int64_t H = settings_.heads, K = settings_.head_width;
  const at::ScalarType dtype = activations_;
  const std::vector<int64_t> inputs = {settings_.conv_width - 1, H * K};
  return {
      {.name = "convolution inputs of queries", .of = sequence, .sizes = inputs, .dtype = dtype},
      {.name = "convolution inputs of keys", .of = sequence, .sizes = inputs, .dtype = dtype},
      {.name = "convolution inputs of values", .of = sequence, .sizes = inputs, .dtype = dtype},
      {.name = "delta states",
       .of = sequence,
       .sizes = {H, K, K},
       .dtype = compute_dtype(activations_)}};
}

}  // namespace attnres
