#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <sstream>
#include <vector>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;

constexpr int64_t kChunk = 64;
// The fewest tokens for which chunks are faster.
constexpr int64_t kFewestForChunks = 16;

void check_input(const char* name, const Tensor& input, at::IntArrayRef expected) {
  if (input.sizes() == expected) return;
  std::ostringstream sizes, wanted;
  sizes << input.sizes();
  wanted << expected;
  fail("gated_delta_rule: {} must be {}, but is {}", name, wanted.str(), sizes.str());
}

// The inputs in the dtype of the computation, with a state.
GatedDeltaRuleInputs prepare(const GatedDeltaRuleInputs& in) {
  require(in.q.dim() == 4 && in.q.numel() > 0,
          "gated_delta_rule: q must be [B, T, H, K], none of them 0");
  require(in.v.dim() == 4, "gated_delta_rule: v must be [B, T, H, V]");
  const int64_t B = in.q.size(0), T = in.q.size(1), H = in.q.size(2), K = in.q.size(3),
                V = in.v.size(3);
  check_input("k", in.k, {B, T, H, K});
  check_input("v", in.v, {B, T, H, V});
  check_input("log_decay", in.log_decay, {B, T, H, K});
  check_input("beta", in.beta, {B, T, H});
  if (in.state.defined()) check_input("state", in.state, {B, H, K, V});
  const at::ScalarType dtype = compute_dtype(in.q);
  return {.q = in.q.to(dtype),
          .k = in.k.to(dtype),
          .v = in.v.to(dtype),
          .log_decay = in.log_decay.to(dtype),
          .beta = in.beta.to(dtype),
          .state = in.state.defined() ? in.state.to(dtype)
                                      : at::zeros({B, H, K, V}, in.q.options().dtype(dtype))};
}

// x_BTHF as chunks of C tokens [n B H, C, F], the last filled up with zeros: tokens that neither
// change the state nor let it decay.
Tensor to_chunks(const Tensor& x, int64_t C) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), F = x.size(3), n = (T + C - 1) / C;
  const Tensor whole = T == n * C ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, n * C - T});
  return whole.reshape({B, n, C, H, F})
      .permute({1, 0, 3, 2, 4})
      .contiguous()
      .view({n * B * H, C, F});
}

Tensor from_chunks(const Tensor& chunks, int64_t B, int64_t T) {
  const int64_t n = chunks.size(0), H = chunks.size(1) / B, C = chunks.size(2), F = chunks.size(3);
  return chunks.view({n, B, H, C, F})
      .permute({1, 0, 3, 2, 4})
      .reshape({B, n * C, H, F})
      .narrow(1, 0, T);
}

// [[a, 0], [b, c]], of square matrices [M, s, s].
Tensor lower_triangular(const Tensor& a, const Tensor& b, const Tensor& c) {
  return at::cat({at::constant_pad_nd(a, {0, a.size(2)}), at::cat({b, c}, 2)}, 1);
}

// What passes between the tokens i >= j of each chunk, and across its ends. With a_i the decays,
// A_i their product from the chunk's start up to token i, and k_i' = beta_i k_i:
struct WithinChunks {
  Tensor scores_MCC;         // q_i . (A_i / A_j k_j)
  Tensor corrections_MCC;    // (I + L)^-1, L_ij = k_i' . (A_i / A_j k_j) for j < i
  Tensor q_MCK, beta_k_MCK;  // A_i q_i, A_i k_i'
  Tensor k_MCK;              // A_C / A_i k_i
  Tensor decay_M1K;          // A_C
};

// By doubling: from blocks of one token to the whole chunk, with queries decayed since the start of
// their block and keys until its end, so that where two blocks meet A_i / A_j is a product of both.
// Decays are only ever multiplied: nothing overflows, cancels or is divided.
WithinChunks within_chunks(const Tensor& q_MCK, const Tensor& k_MCK, const Tensor& beta_k_MCK,
                           const Tensor& decay_MCK) {
  const int64_t M = k_MCK.size(0), C = k_MCK.size(1), K = k_MCK.size(2);
  Tensor scores = at::sum(q_MCK * k_MCK, -1).view({M * C, 1, 1});
  Tensor corrections = at::ones_like(scores);
  Tensor decays = decay_MCK.view({M * C, 1, K}), keys = k_MCK.view({M * C, 1, K});
  // What reads the state: of each token the query and the key.
  Tensor readers = at::stack({q_MCK, beta_k_MCK}, 2).view({M * C, 2, K}) * decays;
  for (int64_t size = 1; size < C; size *= 2) {
    const int64_t pairs = M * C / (2 * size);
    const auto halves = [&](const Tensor& x) {
      return x.view({pairs, 2, x.size(1), x.size(2)}).unbind(1);
    };
    const std::vector<Tensor> score = halves(scores), correction = halves(corrections),
                              decay = halves(decays), key = halves(keys), reader = halves(readers);
    const std::vector<Tensor> across =
        at::bmm(reader[1], key[0].transpose(1, 2)).view({pairs, size, 2, size}).unbind(2);
    scores = lower_triangular(score[0], across[0], score[1]);
    corrections = lower_triangular(correction[0],
                                   at::bmm(at::bmm(correction[1], across[1]), correction[0]).neg(),
                                   correction[1]);
    readers = at::cat({reader[0], reader[1] * decay[0]}, 1);
    keys = at::cat({key[0] * decay[1], key[1]}, 1);
    decays = decay[0] * decay[1];
  }
  const std::vector<Tensor> reader = readers.view({M, C, 2, K}).unbind(2);
  return {scores, corrections, reader[0], reader[1], keys, decays};
}

}  // namespace

GatedDeltaRuleOutput gated_delta_rule(const GatedDeltaRuleInputs& inputs) {
  const bool few = inputs.q.dim() != 4 || inputs.q.size(1) < kFewestForChunks;
  return few ? gated_delta_rule_recurrent(inputs) : gated_delta_rule_chunked(inputs);
}

GatedDeltaRuleOutput gated_delta_rule_recurrent(const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs in = prepare(inputs);
  const int64_t B = in.v.size(0), T = in.v.size(1), H = in.v.size(2), V = in.v.size(3);
  // One [B H, 1, F] for each token.
  const auto tokens = [](const Tensor& x) {
    return x.transpose(0, 1).reshape({x.size(1), x.size(0) * x.size(2), 1, -1}).unbind(0);
  };
  const std::vector<Tensor> q = tokens(in.q), k = tokens(in.k), v = tokens(in.v),
                            decay = tokens(in.log_decay.exp()), beta = tokens(in.beta);
  Tensor state = in.state.reshape({B * H, -1, V});
  std::vector<Tensor> o;
  for (int64_t t = 0; t < T; ++t) {
    state = state * decay[t].transpose(1, 2);
    const Tensor correction = beta[t] * at::baddbmm(v[t], k[t], state, /*beta=*/1, /*alpha=*/-1);
    state = at::baddbmm(state, k[t].transpose(1, 2), correction);
    o.push_back(at::bmm(q[t], state));
  }
  return {at::stack(o).view({T, B, H, V}).transpose(0, 1).to(inputs.v.scalar_type()),
          state.view({B, H, -1, V})};
}

// With V' = (I + L)^-1 (beta V - k' S), the corrections that the chunk's tokens write,
//   o = q S + scores V'
//   S <- A_C S + k^T V'
GatedDeltaRuleOutput gated_delta_rule_chunked(const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs in = prepare(inputs);
  const int64_t B = in.v.size(0), T = in.v.size(1), H = in.v.size(2), V = in.v.size(3),
                K = in.k.size(3);
  const int64_t C = std::min<int64_t>(kChunk, std::bit_ceil(static_cast<uint64_t>(T)));
  const int64_t n = (T + C - 1) / C, M = n * B * H;
  const auto chunks = [&](const Tensor& x) { return to_chunks(x, C); };
  const auto in_order = [&](const Tensor& x) {
    return x.view({n, B * H, x.size(1), x.size(2)}).unbind(0);
  };

  const Tensor k = chunks(in.k), beta = chunks(in.beta.unsqueeze(3));
  const WithinChunks within = within_chunks(chunks(in.q), k, beta * k, chunks(in.log_decay).exp());
  const std::vector<Tensor> values = in_order(at::bmm(within.corrections_MCC, beta * chunks(in.v)));
  const std::vector<Tensor> reads = in_order(at::bmm(within.corrections_MCC, within.beta_k_MCK));
  const std::vector<Tensor> writes = in_order(within.k_MCK);
  const std::vector<Tensor> decays = in_order(within.decay_M1K.view({M, K, 1}));

  Tensor state = in.state.reshape({B * H, K, V});
  std::vector<Tensor> states, corrections;
  for (int64_t c = 0; c < n; ++c) {
    states.push_back(state);
    corrections.push_back(at::baddbmm(values[c], reads[c], state, /*beta=*/1, /*alpha=*/-1));
    state = at::baddbmm(decays[c] * state, writes[c].transpose(1, 2), corrections[c]);
  }
  const Tensor o =
      at::baddbmm(at::bmm(within.q_MCK, at::cat(states)), within.scores_MCC, at::cat(corrections));
  return {from_chunks(o.view({n, B * H, C, V}), B, T).to(inputs.v.scalar_type()),
          state.view({B, H, K, V})};
}

}  // namespace attnres
