// What gated streams need of a block of tokens beside matrix products. Raw pointers, no tensor
// library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// Of n streams of `width` numbers a token; pointers are to the first token of the block.
struct GatedStreamsSizes {
  int64_t streams, width;
};

// N_i = g_i * H_i rho_i,  rho_i = 1 / sqrt(mean(H_i^2) + eps)
template <class Storage>
struct GatedStreamsNorm {
  using T = Compute<Storage>;
  GatedStreamsSizes sizes;
  const Storage* streams_TND;
  const T* gain_ND;
  double eps;
  T* normed_TND;
  T* rho_TN;
};

// x = 1/n sum_i sg(P_i) * N_i
template <class Storage>
struct GatedStreamsMean {
  using T = Compute<Storage>;
  GatedStreamsSizes sizes;
  const T* normed_TND;
  const T* logits_TND;  // P
  Storage* x_TD;
};

// With G = sg(P):  dN_i = G_i * dx / n,  dP_i = G_i (1 - G_i) * N_i * dx / n
template <class Storage>
struct GatedStreamsMeanBackward {
  using T = Compute<Storage>;
  GatedStreamsSizes sizes;
  const Storage* grad_x_TD;
  const T* normed_TND;
  T* logits_TND;  // P, and then dP
  T* grad_normed_TND;
};

// dH_i = rho_i (g_i * dN_i - H_i rho_i^2 (g_i * dN_i . H_i) / D),  dg_i = sum dN_i * H_i rho_i
template <class Storage>
struct GatedStreamsNormBackward {
  using T = Compute<Storage>;
  GatedStreamsSizes sizes;
  const Storage* streams_TND;
  const T* gain_ND;
  const T* rho_TN;
  const T* grad_normed_TND;
  T* grad_streams_TND;  // null: not wanted
  bool accumulate;      // adds to what is there instead of replacing it
};

// Tokens [first, last) of the block.
ATTNRES_DECLARE(gated_streams_norm, GatedStreamsNorm)
ATTNRES_DECLARE(gated_streams_mean, GatedStreamsMean)
ATTNRES_DECLARE(gated_streams_mean_backward, GatedStreamsMeanBackward)

// Adds these tokens' part of the gain's gradient to `sums` [n, D], in the order of the tokens.
ATTNRES_DECLARE_WITH_SUMS(gated_streams_norm_backward, GatedStreamsNormBackward)

}  // namespace attnres::kernel
