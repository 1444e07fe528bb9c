// Phase 2 of depth attention at one site (arXiv 2603.15031, Algorithm 1), fused with what may stand
// around it: the pending sublayer output is added to the partial sum, the sources that phase 1 did
// not see are scored, both softmax parts are merged, and the sublayer's input norm is applied. One
// token's rows are read from memory once. Raw pointers, no tensor library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// K >= 0 recent sources: those that phase 1 did not see. The last may be a sum, partial + pending,
// that this kernel forms. K = 0 needs phase 1; K > 0 does without it.
//
// With z_k the recent sources' scores, m' = max(m, z_k), kappa = e^{m - m'} / Z, w_k = e^{z_k - m'}
// / Z, and Z such that kappa ell + sum w_k = 1:
//   h = kappa o + sum_k w_k v_k,   x = gain * h rho,   rho = 1 / sqrt(mean(h^2) + norm_eps)
// and x = h without a norm. What is saved for the backward is null where no gradient is wanted.
template <class Storage>
struct PhaseTwoForward {
  using T = Compute<Storage>;
  int64_t num_recent, num_tokens, width;
  const Storage* earlier_TD;       // o of phase 1, or null: there was none
  const T *max_T, *sum_T;          // m and ell of phase 1
  const Storage* const* recent_K;  // each [T, D]; the last is unused where `pending` is given
  const Storage *partial_TD, *pending_TD;  // null: the last recent source is no sum to be formed
  Storage* sum_TD;                         // receives partial + pending
  const T* folded_query_D;                 // pseudo-query times key-norm gain; unused if K = 0
  double eps;                              // of the sources' RMS
  const T* gain_D;                         // of the input norm; null: there is none
  double norm_eps;
  T* const* inverse_rms_K;  // 1 / RMS(v_k), each [T], or null where not known and not wanted
  const bool* rms_known_K;  // whether inverse_rms is read; else it is written
  Storage* x_TD;
  Storage* normalized_TD;  // h rho, and the rest: saved for the backward; may be null
  T* scores_KT;
  T* weights_KT;        // w_k
  T* earlier_weight_T;  // kappa
  T* rho_T;
};

// Nothing of size D is needed beyond the recent sources and x: h rho = x / gain, and
// c = sum_i alpha_i dh . v_i = dh . h = norm_eps rho^2 (dx . x), since the norm does not see the
// scale of h. Without a norm, c = dx . x. Without phase 1 it is summed up.
template <class Storage>
struct PhaseTwoBackward {
  using T = Compute<Storage>;
  int64_t num_recent, num_tokens, width;
  const Storage* const* recent_K;  // the last is the sum, where one was formed
  const T* folded_query_D;
  const T* gain_D;  // null: there is no norm
  double norm_eps;
  const T* const* inverse_rms_K;
  const T *scores_KT, *weights_KT, *earlier_weight_T;
  const T* rho_T;  // of a norm
  // x with the reciprocal gain, or h rho with ones: their product is h rho. Without a norm, h
  // alone.
  const Storage* kept_TD;
  const T* kept_factor_D;
  const Storage* grad_x_TD;
  const Storage* grad_sum_TD;     // the sum's gradient from later sites; null: none
  Storage* grad_earlier_TD;       // of o; null if there was no phase 1
  T* grad_sum_T;                  // of ell; null if there was no phase 1
  Storage* const* grad_recent_K;  // each [T, D], or null where not wanted
  const bool* accumulate_K;
  T* grad_scores_T = nullptr;       // sum of the recent scores' gradients, for phase 1; may be null
  T* const* grad_sums_K = nullptr;  // in the compute type instead: those that are not null here
};

ATTNRES_DECLARE(phase_two_forward, PhaseTwoForward)

// Writes the gradients of tokens [first, last), and adds these tokens' parts of the folded query's
// gradient to `sums` [D] and, where there is a norm, of its gain's to the [D] after it, in the
// order of the tokens.
ATTNRES_DECLARE_WITH_SUMS(phase_two_backward, PhaseTwoBackward)

}  // namespace attnres::kernel
