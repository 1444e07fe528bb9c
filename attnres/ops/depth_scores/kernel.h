// Scores and weighted sums of sources, a token's sources while they are in the cache. Raw pointers,
// no tensor library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// N sources of T tokens; H groups of D / H channels each.
struct SourceSizes {
  int64_t sources, tokens, width, heads;
};

// s_ih = sum_{c in h} q_c f(k_ic),  k_i = g * n_i,  n_i = rho_i v_i,
// rho_i = 1 / sqrt(mean(v_i^2) + eps)
template <class Storage>
struct DepthScores {
  using T = Compute<Storage>;
  SourceSizes sizes;
  const Storage* const* sources_TD;
  const T* query_D;
  int64_t query_stride;  // to the next token's; 0: all have the same
  const T* key_gain_D;   // g; null: ones
  bool normalised;       // else rho = 1
  bool factorised;       // f(x) = elu(x) + 1, else f(x) = x
  double eps;
  T* scores_NTH;
  T* inverse_rms_NT;  // rho; null where not normalised
};

// With dk_ic = ds_ih q_c f'(k_ic):
//   dq_c = sum_i ds_ih f(k_ic),  dg = sum_i dk_i * n_i,
//   dv_i = rho_i (g * dk_i - n_i (n_i . (g * dk_i)) / D), or g * dk_i where not normalised
template <class Storage>
struct DepthScoresBackward {
  using T = Compute<Storage>;
  DepthScores<Storage> forward;
  const T* grad_scores_NTH;
  T* const* grad_sources_TD;  // null where not wanted
  const bool* accumulate_N;   // adds to what is there instead of replacing it
  T* grad_query_TD;           // null: the sum over tokens, among the sums
};

// h_c = sum_i w_ih v_ic for c in h
template <class Storage>
struct WeightedSum {
  using T = Compute<Storage>;
  SourceSizes sizes;
  const Storage* const* sources_TD;
  const T* weights_NTH;
  Storage* sum_TD;
};

// dw_ih = sum_{c in h} dh_c v_ic,  dv_ic = w_ih dh_c
template <class Storage>
struct WeightedSumBackward {
  using T = Compute<Storage>;
  WeightedSum<Storage> forward;
  const Storage* grad_sum_TD;
  T* const* grad_sources_TD;
  const bool* accumulate_N;
  T* grad_weights_NTH;  // null: not wanted
};

// Tokens [first, last).
ATTNRES_DECLARE(depth_scores, DepthScores)

// Adds these tokens' part of the query's gradient and of the gain's to sums [2, D].
ATTNRES_DECLARE_WITH_SUMS(depth_scores_backward, DepthScoresBackward)

ATTNRES_DECLARE(weighted_sum, WeightedSum)

ATTNRES_DECLARE(weighted_sum_backward, WeightedSumBackward)

}  // namespace attnres::kernel
