// The depth-attention kernels: raw pointers, no tensor library, no threads of their own. A call
// works on a range of tokens; the caller spreads ranges over threads. Rows may be unaligned and of
// any width.
//
// The pass over sources serves S sites at once, which is phase 1 of the two-phase schedule
// (arXiv 2603.15031, Algorithm 1), and with S = 1 the whole of depth attention. It reads every
// source from memory once: a tile of tokens stays in the core's cache between its scores and its
// weighted sums. Phase 2 is kernel_phase_two.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// N >= 1 sources, S >= 1 sites, T >= 0 tokens, D >= 1 channels.
template <class Storage>
struct DepthAttentionInputs {
  const Storage* const* sources_N;            // each [T, D]
  const Compute<Storage>* folded_queries_SD;  // pseudo-query times key-norm gain
  int64_t num_sources, num_sites, num_tokens, width;
};

// With scores s_i = q . v_i / RMS(v_i) of the sources v_i, m = max s_i and ell = sum e^{s_i - m}:
//   complete: h = sum e^{s_i - m} v_i / ell      otherwise: o = sum e^{s_i - m} v_i
// The weights are what the sources are multiplied by: alpha_i, or e^{s_i - m}.
template <class Storage>
struct DepthAttentionForward {
  using T = Compute<Storage>;
  DepthAttentionInputs<Storage> inputs;
  double eps;
  bool complete;
  T* const* inverse_rms_N;    // 1 / RMS(v_i), each [T], or null where not known and not wanted
  const bool* rms_known_N;    // whether inverse_rms is read; else it is written
  Storage* const* outputs_S;  // h or o, each [T, D]
  T* max_ST;                  // m and ell; null where not wanted
  T* sum_ST;
  T* scores_SNT;   // saved for the backward; null where not wanted
  T* weights_SNT;  // likewise; wanted where the scores are
};

// A score's gradient is ds_i = w_i (dw_i - c), with dw_i = do . v_i; the softmax's own term c is
// such that the gradients of all its scores add up to zero. Complete: these sources' alone.
// Otherwise the softmax is joint with phase 2, which gives either -c, the gradient of ell, or the
// sum R of its scores' gradients: c = (sum w_i dw_i + R) / sum w_i. The latter is what bfloat16
// needs: where sources are alike, ds_i are small differences, and a c that does not go with do as
// it was rounded is mostly error.
template <class Storage>
struct DepthAttentionBackward {
  using T = Compute<Storage>;
  DepthAttentionInputs<Storage> inputs;
  const T* const* inverse_rms_N;
  const T* scores_SNT;
  const T* weights_SNT;
  const Storage* const* grad_outputs_S;     // each [T, D]
  const T* grad_sum_ST;                     // of ell; null: c is computed here
  const T* grad_weights_SNT;                // may be null: zero; only where complete
  Storage* const* grad_sources_N;           // each [T, D], or null where not wanted
  const bool* accumulate_N;                 // whether to add to what is there or to overwrite it
  const T* other_grad_scores_ST = nullptr;  // R; null: zero. Unused with grad_sum
  T* const* grad_sums_N = nullptr;  // in the compute type instead: those that are not null here
};

// The instruction sets that the kernels were compiled for and this machine has, best first; calls
// use the first.
std::vector<std::string> instruction_sets();

// Computes tokens [first, last).
ATTNRES_DECLARE(depth_attention_forward, DepthAttentionForward)

// Writes the sources' gradients of tokens [first, last), and adds these tokens' part of the folded
// queries' gradients to `sums` [S, D], in the order of the tokens.
ATTNRES_DECLARE_WITH_SUMS(depth_attention_backward, DepthAttentionBackward)

}  // namespace attnres::kernel
