#include "attnres/ops/gated_delta_rule/chunked.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "attnres/ops/composed.h"

namespace attnres {
namespace {

using at::Tensor;

constexpr int64_t kChunk = 32;

// x_BTHF as chunks of C tokens [n B H, C, F], the last filled up with zeros: tokens that neither
// change the state nor let it decay.
Tensor to_chunks(const Tensor& x) {
  const int64_t B = x.size(0), T = x.size(1), H = x.size(2), F = x.size(3), C = kChunk,
                n = (T + C - 1) / C;
  const Tensor whole = T == n * C ? x : at::constant_pad_nd(x, {0, 0, 0, 0, 0, n * C - T});
  return whole.reshape({B, n, C, H, F})
      .permute({1, 0, 3, 2, 4})
      .contiguous()
      .view({n * B * H, C, F});
}

// Back to the sizes of x_BTHF.
Tensor from_chunks(const Tensor& chunks, const Tensor& like) {
  const int64_t B = like.size(0), T = like.size(1), H = like.size(2), C = chunks.size(1),
                F = chunks.size(2);
  return chunks.view({-1, B, H, C, F})
      .permute({1, 0, 3, 2, 4})
      .reshape({B, -1, H, F})
      .narrow(1, 0, T)
      .contiguous();
}

// Chunks are halved and halved again: blocks of `size` tokens come in pairs. This is the earlier
// (0) or the later (1) block of every pair, [pairs, size, F].
Tensor half(const Tensor& x_MCF, int64_t size, int64_t which) {
  return x_MCF.view({-1, 2, size, x_MCF.size(2)}).select(1, which);
}

// The part of matrices between the tokens of a chunk whose rows are half `row` of a pair and whose
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

// The inputs by chunks: [M, C, K], [M, C, V], and beta [M, C, 1].
struct Chunks {
  Tensor q, k, v, beta;
};

Chunks chunks_of(const GatedDeltaRuleInputs& in) {
  return {to_chunks(in.q), to_chunks(in.k), to_chunks(in.v.to(in.q.scalar_type())),
          to_chunks(in.beta.unsqueeze(3))};
}

// What is kept for the backward, as allocate_chunked_saved has it; `states` before each chunk.
struct KeptChunks {
  const Tensor &decay, &scores, &inverse, &decayed_q, &decayed_beta_k, &decayed_k, &whole_decay_MK1,
      &corrections, &states;
};

// From the last chunk to the first,
//   dV' = scores^T do + (A_C / A k) dS
//   dR = (I + L)^-T dV'
//   dS <- A_C dS + (A q)^T do - (A k')^T dR
struct GradientsInOrder {
  Tensor R;       // dR [M, C, V]
  Tensor states;  // dS [M + N, K, V], before each chunk and after the last
};

GradientsInOrder gradients_in_order(const KeptChunks& kept, const Tensor& grad_o,
                                    const Tensor& grad_state) {
  const int64_t M = grad_o.size(0), N = grad_state.size(0);
  const Tensor grad_corrections = at::bmm(kept.scores.transpose(1, 2), grad_o);
  const Tensor grad_R = at::empty_like(grad_corrections);
  const Tensor grad_states =
      at::empty({M + N, grad_state.size(1), grad_state.size(2)}, kept.decay.options());
  Tensor grad_before = grad_states.narrow(0, 0, M);
  at::bmm_out(grad_before, kept.decayed_q.transpose(1, 2), grad_o);
  grad_states.narrow(0, M, N).copy_(grad_state);
  const auto in_order = [&](const Tensor& x) { return x.split(N); };
  const std::vector<Tensor> reads = in_order(kept.decayed_beta_k),
                            inverses = in_order(kept.inverse), writes = in_order(kept.decayed_k),
                            whole_decays = in_order(kept.whole_decay_MK1),
                            dV = in_order(grad_corrections);
  std::vector<Tensor> dR = in_order(grad_R), dS = in_order(grad_states);
  for (size_t c = dR.size(); c-- > 0;) {
    dV[c].baddbmm_(writes[c], dS[c + 1]);
    at::bmm_out(dR[c], inverses[c].transpose(1, 2), dV[c]);
    dS[c]
        .addcmul_(whole_decays[c], dS[c + 1])
        .baddbmm_(reads[c].transpose(1, 2), dR[c], /*beta=*/1, /*alpha=*/-1);
  }
  return {grad_R, grad_states};
}

// The gradients of the readers q and k' and of the keys, through all but q_i . k_i. `grad_reads`
// are those of what the readers read, `grad_products` of their products with keys, `grad_decayed_k`
// of the keys as they write.
struct ReaderGradients {
  Tensor readers[2], k;
};

ReaderGradients reader_gradients(const KeptChunks& kept, const Tensor& k,
                                 const Tensor (&readers)[2], const Tensor (&grad_reads)[2],
                                 const Tensor (&grad_products)[2], const Tensor& grad_decayed_k) {
  const ReaderGradients grads = {{at::zeros_like(k), at::zeros_like(k)}, at::zeros_like(k)};
  const BlockDecays decays = double_blocks(
      kept.decay, [&](int64_t size, const Tensor& since_start, const Tensor& until_end) {
        const Tensor keys = half(k, size, 0) * until_end;
        for (const int r : {0, 1}) {
          const Tensor grad = as_batch(between_halves(grad_products[r], size, 1, 0));
          const Tensor reader = half(readers[r], size, 1) * since_start;
          half(grads.readers[r], size, 1).addcmul_(product(grad, keys), since_start);
          half(grads.k, size, 0).addcmul_(product(grad.transpose(1, 2), reader), until_end);
        }
      });
  for (const int r : {0, 1}) {
    grads.readers[r].addcmul_(at::bmm(grad_reads[r], kept.states.transpose(1, 2)),
                              decays.since_start_MCK);
  }
  grads.k.addcmul_(grad_decayed_k, decays.until_end_MCK);
  return grads;
}

}  // namespace

std::vector<Tensor> allocate_chunked_saved(const GatedDeltaRuleInputs& in) {
  const auto K = in.q.sym_size(3), V = in.v.sym_size(3);
  const auto M = (in.q.sym_size(1) + (kChunk - 1)) / kChunk * in.q.sym_size(0) * in.q.sym_size(2);
  const auto matrices = [&](const c10::SymInt& rows, const c10::SymInt& columns) {
    return at::empty_symint({M, rows, columns}, in.q.options().requires_grad(false));
  };
  const c10::SymInt C = kChunk;
  return {matrices(C, K), matrices(C, C), matrices(C, C), matrices(C, K), matrices(C, K),
          matrices(C, K), matrices(K, 1), matrices(C, V), matrices(K, V)};
}

// With a_i the decays of a chunk, A_i their product from its start up to token i, and
// k_i' = beta_i k_i,
//   scores_ij = q_i . (A_i / A_j k_j) for j <= i
//   L_ij = k_i' . (A_i / A_j k_j) for j < i
//   R = beta V - (A k') S, what the state lacks of the values
//   V' = (I + L)^-1 R, the corrections that the chunk's tokens write
//   o = (A q) S + scores V'
//   S <- A_C S + (A_C / A k)^T V'
// q and k' are the readers: of the keys before them and of the state.
ChunkedDeltaRule chunked_delta_rule(const GatedDeltaRuleInputs& in, bool for_backward) {
  note_composed("gated delta rule", in.v);
  const Chunks chunks = chunks_of(in);
  const Tensor &q = chunks.q, &k = chunks.k, &v = chunks.v, &beta = chunks.beta;
  const Tensor log_decay = to_chunks(in.log_decay);
  const Tensor state = in.state.reshape({-1, in.state.size(2), in.state.size(3)});
  const int64_t M = k.size(0), C = kChunk, K = k.size(2), N = state.size(0);
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
    at::mul_out(S[c + 1], whole_decays[c], S[c]).baddbmm_(writes[c].transpose(1, 2), correction[c]);
  }
  const Tensor before = states.narrow(0, 0, M);
  const Tensor o = at::bmm(decayed_q, before).baddbmm_(scores, corrections);
  ChunkedDeltaRule result = {
      from_chunks(o, in.v).to(in.v.scalar_type()), S.back().clone().view(in.state.sizes()), {}};
  if (for_backward) {  // as allocate_chunked_saved has them
    result.saved = {decay,     scores,          inverse,     decayed_q, decayed_beta_k,
                    decayed_k, whole_decay_MK1, corrections, before};
  }
  return result;
}

// After the gradients in order, dscores = do V'^T and dL = -dR V'^T.
//
// With G = log A, the readers occur as e^G_i q_i and e^G_i k_i', and the keys as e^-G_j k_j, or
// as e^(G_C - G_j) k_j where they write; only q_i . k_i is without. So
//   dG_i = q_i dq_i + k_i' dk_i' - k_i dk_i
// of all but that, to which i = C adds what its own role gives, and the logarithm of token t's
// decay is in every G_i with i >= t.
GatedDeltaRuleInputs chunked_delta_rule_backward(const GatedDeltaRuleInputs& in,
                                                 at::TensorList saved, const Tensor& grad_o_BTHV,
                                                 const Tensor& grad_state_BHKV) {
  const Chunks chunks = chunks_of(in);
  const Tensor &q = chunks.q, &k = chunks.k, &v = chunks.v, &beta = chunks.beta;
  const KeptChunks kept = {saved[0], saved[1], saved[2], saved[3], saved[4],
                           saved[5], saved[6], saved[7], saved[8]};
  const Tensor grad_o = to_chunks(grad_o_BTHV.to(in.q.scalar_type()));
  const Tensor grad_state = grad_state_BHKV.reshape({-1, k.size(2), v.size(2)});
  const int64_t M = k.size(0), C = kChunk, N = grad_state.size(0);
  const auto [grad_R, grad_states] = gradients_in_order(kept, grad_o, grad_state);
  const Tensor grad_after = grad_states.narrow(0, N, M);

  const Tensor readers[] = {q, beta * k}, grad_reads[] = {grad_o, -grad_R};
  const Tensor grad_products[] = {at::bmm(grad_reads[0], kept.corrections.transpose(1, 2)),
                                  at::bmm(grad_reads[1], kept.corrections.transpose(1, 2))};
  const Tensor grad_decayed_k = at::bmm(kept.corrections, grad_after.transpose(1, 2));
  const ReaderGradients grads =
      reader_gradients(kept, k, readers, grad_reads, grad_products, grad_decayed_k);
  const Tensor &grad_q = grads.readers[0], &grad_beta_k = grads.readers[1], &grad_k = grads.k;

  const Tensor grad_G =
      (q * grad_q).addcmul_(readers[1], grad_beta_k).addcmul_(k, grad_k, /*value=*/-1);
  grad_G.select(1, C - 1)
      .add_(at::sum(kept.decayed_k * grad_decayed_k, 1))
      .addcmul_(at::sum(kept.states * grad_after, -1), kept.whole_decay_MK1.squeeze(2));
  const Tensor later = at::ones({C, C}, k.options()).triu().expand({M, C, C});
  const Tensor grad_log_decay = at::bmm(later, grad_G);

  const Tensor grad_diagonal = grad_products[0].diagonal(0, 1, 2).unsqueeze(2);
  const Tensor grad_beta = at::sum(grad_beta_k * k, -1, true).add_(at::sum(grad_R * v, -1, true));
  const Tensor grad_k_total = grad_k.addcmul_(grad_diagonal, q).addcmul_(grad_beta_k, beta);
  return {.q = from_chunks(grad_q.addcmul_(grad_diagonal, k), in.q),
          .k = from_chunks(grad_k_total, in.k),
          .v = from_chunks(grad_R * beta, in.v).to(in.v.scalar_type()),
          .log_decay = from_chunks(grad_log_decay, in.log_decay),
          .beta = from_chunks(grad_beta, in.beta).squeeze(3),
          .state = grad_states.narrow(0, 0, N).clone().view(in.state.sizes())};
}

}  // namespace attnres
