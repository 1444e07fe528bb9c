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

// x_BTHF as chunks of C tokens [n, B H, C, F], the last filled up with zeros: tokens that neither
// change the state nor let it decay.
Tensor to_chunks(const Tensor& x, int64_t C) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), F = x.size(3), n = (T + C - 1) / C;
  const Tensor whole = T == n * C ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, n * C - T});
  return whole.reshape({B, n, C, H, F}).permute({1, 0, 3, 2, 4}).reshape({n, B * H, C, F});
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

// What passes between the tokens i >= j of each chunk. With k_i' = beta_i k_i and G the sum of
// log_decay from the chunk's start, its first token included:
struct WithinChunks {
  Tensor scores_MCC;       // q_i . (e^(G_i - G_j) k_j)
  Tensor corrections_MCC;  // (I + L)^-1, L_ij = k_i' . (e^(G_i - G_j) k_j) for j < i
  Tensor since_start_MCK;  // G_i
  Tensor until_end_MCK;    // G_C - G_i
  Tensor total_M1K;        // G_C
};

// By doubling: from blocks of one token to the whole chunk. Between the later half of a block and
// the earlier, e^(G_i - G_j) is split in the middle, e^(since the middle) e^(until the middle).
// Both exponents are sums of log decays: 0 or less, and without cancellation.
WithinChunks within_chunks(const Tensor& q_MCK, const Tensor& k_MCK, const Tensor& beta_k_MCK,
                           const Tensor& log_decay_MCK) {
  const int64_t M = k_MCK.size(0), C = k_MCK.size(1), K = k_MCK.size(2);
  const Tensor readers = at::stack({q_MCK, beta_k_MCK}, 2);
  Tensor scores = at::sum(q_MCK * k_MCK, -1).view({M * C, 1, 1});
  Tensor corrections = at::ones_like(scores);
  Tensor since_start = log_decay_MCK.view({M * C, 1, K});
  Tensor until_end = at::zeros_like(since_start), total = since_start;
  for (int64_t size = 1; size < C; size *= 2) {
    const int64_t blocks = M * C / (2 * size);
    const auto halves = [&](const Tensor& x) {
      return x.view({blocks, 2, x.size(1), x.size(2)}).unbind(1);
    };
    const std::vector<Tensor> since = halves(since_start), until = halves(until_end),
                              totals = halves(total), score = halves(scores),
                              correction = halves(corrections);
    const Tensor later =
        readers.view({blocks, 2, size, 2, K}).select(1, 1) * since[1].exp().unsqueeze(2);
    const Tensor earlier = k_MCK.view({blocks, 2, size, K}).select(1, 0) * until[0].exp();
    const std::vector<Tensor> across =
        at::bmm(later.view({blocks, size * 2, K}), earlier.transpose(1, 2))
            .view({blocks, size, 2, size})
            .unbind(2);
    scores = lower_triangular(score[0], across[0], score[1]);
    corrections = lower_triangular(correction[0],
                                   at::bmm(at::bmm(correction[1], across[1]), correction[0]).neg(),
                                   correction[1]);
    since_start = at::cat({since[0], since[1] + totals[0]}, 1);
    until_end = at::cat({until[0] + totals[1], until[1]}, 1);
    total = totals[0] + totals[1];
  }
  return {scores, corrections, since_start, until_end, total};
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

// With V' = (I + L)^-1 (beta (V - (e^G K) S)), the corrections that the chunk's tokens write,
//   o_i = (e^(G_i) q_i)^T S + sum over j <= i of scores_ij V'_j
//   S <- diag(e^(G_C)) S + sum over j of (e^(G_C - G_j) k_j) V'_j^T
GatedDeltaRuleOutput gated_delta_rule_chunked(const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs in = prepare(inputs);
  const int64_t B = in.v.size(0), T = in.v.size(1), H = in.v.size(2), V = in.v.size(3),
                K = in.k.size(3);
  const int64_t C = std::min<int64_t>(kChunk, std::bit_ceil(static_cast<uint64_t>(T)));
  const int64_t n = (T + C - 1) / C, M = n * B * H;
  const auto chunks = [&](const Tensor& x) { return to_chunks(x, C).view({M, C, x.size(3)}); };
  const auto in_order = [&](const Tensor& x) {
    return x.view({n, B * H, x.size(1), x.size(2)}).unbind(0);
  };

  const Tensor q = chunks(in.q), k = chunks(in.k), beta = chunks(in.beta.unsqueeze(3));
  const Tensor beta_k = beta * k;
  const WithinChunks within = within_chunks(q, k, beta_k, chunks(in.log_decay));
  const Tensor decay_since_start = within.since_start_MCK.exp();
  const std::vector<Tensor> values = in_order(at::bmm(within.corrections_MCC, beta * chunks(in.v)));
  const std::vector<Tensor> reads =
      in_order(at::bmm(within.corrections_MCC, decay_since_start * beta_k));
  const std::vector<Tensor> writes =
      in_order((within.until_end_MCK.exp() * k).transpose(1, 2).contiguous());
  const std::vector<Tensor> decays = in_order(within.total_M1K.exp().view({M, K, 1}));

  Tensor state = in.state.reshape({B * H, K, V});
  std::vector<Tensor> states, corrections;
  for (int64_t c = 0; c < n; ++c) {
    states.push_back(state);
    corrections.push_back(at::baddbmm(values[c], reads[c], state, /*beta=*/1, /*alpha=*/-1));
    state = at::baddbmm(decays[c] * state, writes[c], corrections[c]);
  }
  const Tensor o = at::baddbmm(at::bmm(decay_since_start * q, at::cat(states)), within.scores_MCC,
                               at::cat(corrections));
  return {from_chunks(o.view({n, B * H, C, V}), B, T).to(inputs.v.scalar_type()),
          state.view({B, H, K, V})};
}

}  // namespace attnres
