#include "attnres/ops/gated_delta_rule/gated_delta_rule.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <sstream>
#include <vector>

#include "attnres/ops/tensors.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kChunk = 32;
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

// Chunks are halved and halved again: blocks of `size` tokens come in pairs. This is the earlier
// (0) or the later (1) block of every pair, [pairs, size, F].
Tensor half(const Tensor& x_MCF, int64_t size, int64_t which) {
  return x_MCF.view({-1, 2, size, x_MCF.size(2)}).select(1, which);
}

// Of matrices between the tokens of a chunk, the part whose rows are half `row` of a pair and whose
// columns are half `column`: [M, pairs of a chunk, size, size].
Tensor between_halves(const Tensor& x_MCC, int64_t size, int64_t row, int64_t column) {
  const int64_t M = x_MCC.size(0), pairs = x_MCC.size(1) / (2 * size);
  return x_MCC.view({M, pairs, 2, size, pairs, 2, size})
      .select(2, row)
      .select(4, column)
      .diagonal(0, 1, 3)
      .movedim(3, 1);
}

// [M, pairs, size, size] as [M pairs, size, size].
Tensor as_batch(const Tensor& blocks) {
  return blocks.reshape({-1, blocks.size(2), blocks.size(3)});
}

// at::bmm, which is slow where it sums only one or two numbers.
Tensor product(const Tensor& a, const Tensor& b) {
  if (a.size(2) > 2) return at::bmm(a, b);
  Tensor sum = a.narrow(2, 0, 1) * b.narrow(1, 0, 1);
  if (a.size(2) == 2) sum.addcmul_(a.narrow(2, 1, 1), b.narrow(1, 1, 1));
  return sum;
}

struct BlockDecays {
  Tensor since_start_MCK;  // from the start of the token's block up to the token
  Tensor until_end_MCK;    // after the token up to the end of its block
};

// By doubling, from blocks of one token to the whole chunk, whose decays are returned. From a token
// of a pair's earlier block to one of the later, the decay is until_end of the first times
// since_start of the second: f(size, since_start, until_end) gets them for all pairs, each
// [pairs, size, K]. Decays are only ever multiplied: nothing overflows, cancels or is divided.
template <class F>
BlockDecays double_blocks(const Tensor& decay_MCK, F f) {
  const BlockDecays decays = {decay_MCK.clone(), at::ones_like(decay_MCK)};
  for (int64_t size = 1; size < decay_MCK.size(1); size *= 2) {
    const Tensor since_start = half(decays.since_start_MCK, size, 1),
                 until_end = half(decays.until_end_MCK, size, 0);
    f(size, since_start, until_end);
    const auto whole = [&](int64_t which) {
      return half(decays.since_start_MCK, size, which).narrow(1, size - 1, 1);
    };
    until_end.mul_(whole(1));
    since_start.mul_(whole(0));
  }
  return decays;
}

// (I + L)^-1, L below the diagonal: by doubling, as
// [[A, 0], [B, D]]^-1 = [[A^-1, 0], [-D^-1 B A^-1, D^-1]].
Tensor inverse_of_unit_triangular(const Tensor& L_MCC) {
  const int64_t C = L_MCC.size(1);
  const Tensor inverse = at::eye(C, L_MCC.options()).repeat({L_MCC.size(0), 1, 1});
  for (int64_t size = 1; size < C; size *= 2) {
    const auto block = [&](const Tensor& x, int64_t row, int64_t column) {
      return as_batch(between_halves(x, size, row, column));
    };
    const Tensor meeting = between_halves(inverse, size, 1, 0);
    meeting.copy_(product(product(block(inverse, 1, 1), block(L_MCC, 1, 0)), block(inverse, 0, 0))
                      .neg_()
                      .view(meeting.sizes()));
  }
  return inverse;
}

// The chunked form, on tensors by chunks. With a_i the decays of a chunk, A_i their product from
// its start up to token i, and k_i' = beta_i k_i,
//   scores_ij = q_i . (A_i / A_j k_j) for j <= i
//   L_ij = k_i' . (A_i / A_j k_j) for j < i
//   R = beta V - (A k') S, what the state lacks of the values
//   V' = (I + L)^-1 R, the corrections that the chunk's tokens write
//   o = (A q) S + scores V'
//   S <- A_C S + (A_C / A k)^T V'
// q and k' are the readers: of the keys before them and of the state.
class ChunkedFunction : public torch::autograd::Function<ChunkedFunction> {
 public:
  // q, k and log_decay [M, C, K], v [M, C, V], beta [M, C, 1] and the state [N, K, V], where every
  // N of the M chunks begin together. Returns o [M, C, V] and the state.
  static variable_list forward(AutogradContext* context, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& log_decay, const Tensor& beta,
                               const Tensor& state) {
    const int64_t M = k.size(0), C = k.size(1), K = k.size(2), N = state.size(0);
    const Tensor decay = log_decay.exp();
    const Tensor readers[] = {q, beta * k};
    const Tensor scores = at::zeros({M, C, C}, k.options()), L = at::zeros_like(scores);
    const Tensor products[] = {scores, L};
    const BlockDecays decays = double_blocks(decay, [&](int64_t size, const Tensor& since_start,
                                                        const Tensor& until_end) {
      const Tensor keys = (half(k, size, 0) * until_end).transpose(1, 2);
      for (const int r : {0, 1}) {
        const Tensor meeting = between_halves(products[r], size, 1, 0);
        meeting.copy_(at::bmm(half(readers[r], size, 1) * since_start, keys).view(meeting.sizes()));
      }
    });
    scores.diagonal(0, 1, 2).copy_(at::sum(q * k, -1));
    const Tensor inverse = inverse_of_unit_triangular(L);
    const Tensor decayed_q = q * decays.since_start_MCK,
                 decayed_beta_k = readers[1] * decays.since_start_MCK,
                 decayed_k = k * decays.until_end_MCK,
                 whole_decay_MK1 = decays.since_start_MCK.select(1, C - 1).unsqueeze(2).clone();

    const Tensor beta_v = beta * v, corrections = at::empty_like(beta_v);
    const Tensor states = at::empty({M + N, K, v.size(2)}, k.options());
    states.narrow(0, 0, N).copy_(state);
    const auto in_order = [&](const Tensor& x) { return x.split(N); };
    const std::vector<Tensor> values = in_order(beta_v), reads = in_order(decayed_beta_k),
                              inverses = in_order(inverse), writes = in_order(decayed_k),
                              whole_decays = in_order(whole_decay_MK1);
    std::vector<Tensor> correction = in_order(corrections), S = in_order(states);
    for (size_t c = 0; c < values.size(); ++c) {
      const Tensor R = at::baddbmm(values[c], reads[c], S[c], /*beta=*/1, /*alpha=*/-1);
      at::bmm_out(correction[c], inverses[c], R);
      at::mul_out(S[c + 1], whole_decays[c], S[c])
          .baddbmm_(writes[c].transpose(1, 2), correction[c]);
    }
    const Tensor before = states.narrow(0, 0, M);
    context->save_for_backward({q, k, v, decay, beta, scores, inverse, decayed_q, decayed_beta_k,
                                decayed_k, whole_decay_MK1, corrections, before});
    return {at::bmm(decayed_q, before).baddbmm_(scores, corrections), S.back().clone()};
  }

  // From the last chunk to the first,
  //   dV' = scores^T do + (A_C / A k) dS
  //   dR = (I + L)^-T dV'
  //   dS <- A_C dS + (A q)^T do - (A k')^T dR
  // and then dscores = do V'^T, dL = -dR V'^T.
  //
  // With G = log A, the readers occur as e^G_i q_i and e^G_i k_i', and the keys as e^-G_j k_j, or
  // as e^(G_C - G_j) k_j where they write; only q_i . k_i is without. So
  //   dG_i = q_i dq_i + k_i' dk_i' - k_i dk_i
  // of all but that, to which i = C adds what its own role gives, and the logarithm of token t's
  // decay is in every G_i with i >= t.
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    require(!at::GradMode::is_enabled(),
            "gated_delta_rule_chunked: its gradient cannot be differentiated again; take it "
            "without create_graph, or use gated_delta_rule_recurrent");
    const variable_list saved = context->get_saved_variables();
    const Tensor &q = saved[0], &k = saved[1], &v = saved[2], &decay = saved[3], &beta = saved[4],
                 &scores = saved[5], &inverse = saved[6], &decayed_q = saved[7],
                 &decayed_beta_k = saved[8], &decayed_k = saved[9], &whole_decay_MK1 = saved[10],
                 &corrections = saved[11], &states = saved[12];
    const Tensor &grad_o = gradients[0], &grad_state = gradients[1];
    const int64_t M = k.size(0), C = k.size(1), K = k.size(2), N = grad_state.size(0);

    const Tensor grad_corrections = at::bmm(scores.transpose(1, 2), grad_o);
    const Tensor grad_R = at::empty_like(grad_corrections);
    const Tensor grad_states = at::empty({M + N, K, v.size(2)}, k.options());
    Tensor grad_before = grad_states.narrow(0, 0, M);
    const Tensor grad_after = grad_states.narrow(0, N, M);
    at::bmm_out(grad_before, decayed_q.transpose(1, 2), grad_o);
    grad_states.narrow(0, M, N).copy_(grad_state);
    const auto in_order = [&](const Tensor& x) { return x.split(N); };
    const std::vector<Tensor> reads = in_order(decayed_beta_k), inverses = in_order(inverse),
                              writes = in_order(decayed_k),
                              whole_decays = in_order(whole_decay_MK1),
                              dV = in_order(grad_corrections);
    std::vector<Tensor> dR = in_order(grad_R), dS = in_order(grad_states);
    for (size_t c = dR.size(); c-- > 0;) {
      dV[c].baddbmm_(writes[c], dS[c + 1]);
      at::bmm_out(dR[c], inverses[c].transpose(1, 2), dV[c]);
      dS[c]
          .addcmul_(whole_decays[c], dS[c + 1])
          .baddbmm_(reads[c].transpose(1, 2), dR[c], /*beta=*/1, /*alpha=*/-1);
    }

    // Through all but q_i . k_i, added last.
    const Tensor readers[] = {q, beta * k};
    const Tensor grad_readers[] = {at::zeros_like(q), at::zeros_like(q)};
    const Tensor grad_k = at::zeros_like(k);
    const Tensor grad_reads[] = {grad_o, -grad_R};
    const Tensor grad_products[] = {at::bmm(grad_reads[0], corrections.transpose(1, 2)),
                                    at::bmm(grad_reads[1], corrections.transpose(1, 2))};
    const BlockDecays decays =
        double_blocks(decay, [&](int64_t size, const Tensor& since_start, const Tensor& until_end) {
          const Tensor keys = half(k, size, 0) * until_end;
          for (const int r : {0, 1}) {
            const Tensor grad = as_batch(between_halves(grad_products[r], size, 1, 0));
            const Tensor reader = half(readers[r], size, 1) * since_start;
            half(grad_readers[r], size, 1).addcmul_(product(grad, keys), since_start);
            half(grad_k, size, 0).addcmul_(product(grad.transpose(1, 2), reader), until_end);
          }
        });
    for (const int r : {0, 1}) {
      grad_readers[r].addcmul_(at::bmm(grad_reads[r], states.transpose(1, 2)),
                               decays.since_start_MCK);
    }
    const Tensor grad_decayed_k = at::bmm(corrections, grad_after.transpose(1, 2));
    grad_k.addcmul_(grad_decayed_k, decays.until_end_MCK);

    const Tensor grad_G = (q * grad_readers[0])
                              .addcmul_(readers[1], grad_readers[1])
                              .addcmul_(k, grad_k, /*value=*/-1);
    grad_G.select(1, C - 1)
        .add_(at::sum(decayed_k * grad_decayed_k, 1))
        .addcmul_(at::sum(states * grad_after, -1), whole_decay_MK1.squeeze(2));
    const Tensor later = at::ones({C, C}, k.options()).triu().expand({M, C, C});
    const Tensor grad_log_decay = at::bmm(later, grad_G);

    const Tensor grad_diagonal = grad_products[0].diagonal(0, 1, 2).unsqueeze(2);
    const Tensor& grad_beta_k = grad_readers[1];
    const Tensor grad_beta = at::sum(grad_beta_k * k, -1, true).add_(at::sum(grad_R * v, -1, true));
    return {grad_readers[0].addcmul_(grad_diagonal, k),
            grad_k.addcmul_(grad_diagonal, q).addcmul_(grad_beta_k, beta),
            grad_R * beta,
            grad_log_decay,
            grad_beta,
            dS.front().clone()};
  }
};

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

GatedDeltaRuleOutput gated_delta_rule_chunked(const GatedDeltaRuleInputs& inputs) {
  const GatedDeltaRuleInputs in = prepare(inputs);
  const int64_t B = in.v.size(0), T = in.v.size(1), H = in.v.size(2), V = in.v.size(3),
                K = in.k.size(3);
  const int64_t C = std::min<int64_t>(kChunk, std::bit_ceil(static_cast<uint64_t>(T)));
  const auto chunks = [&](const Tensor& x) { return to_chunks(x, C); };
  const variable_list out =
      ChunkedFunction::apply(chunks(in.q), chunks(in.k), chunks(in.v), chunks(in.log_decay),
                             chunks(in.beta.unsqueeze(3)), in.state.reshape({B * H, K, V}));
  return {from_chunks(out[0].view({-1, B * H, C, V}), B, T).to(inputs.v.scalar_type()),
          out[1].view({B, H, K, V})};
}

}  // namespace attnres
