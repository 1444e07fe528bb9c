// RMSNorm, and the addition before it, in one pass over a token's row; and its backward in one.
// Raw pointers, no tensor library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// h = state + pending (or state alone),  y = gain * h rho,  rho = 1 / sqrt(mean(h^2) + eps)
template <class Storage>
struct RmsNormForward {
  using T = Compute<Storage>;
  int64_t width;
  const Storage* state_TD;
  const Storage* pending_TD;  // null: none, and h is not written
  Storage* h_TD;
  const T* gain_D;
  double eps;
  Storage* y_TD;
  T* rho_T;  // null: not wanted
};

// dh = dh_later + rho (gain * dy - h rho^2 (gain * dy . h) / D),  dgain = sum dy * h rho
template <class Storage>
struct RmsNormBackward {
  using T = Compute<Storage>;
  int64_t width;
  const Storage* h_TD;
  const T* rho_T;
  const T* gain_D;
  const Storage* grad_y_TD;
  const Storage* grad_later_TD;  // of h, from what came after; null: none
  Storage* grad_h_TD;
};

// Tokens [first, last).
ATTNRES_DECLARE(rms_norm_forward, RmsNormForward)

// Adds these tokens' part of the gain's gradient to `sums` [D], in the order of the tokens.
ATTNRES_DECLARE_WITH_SUMS(rms_norm_backward, RmsNormBackward)

}  // namespace attnres::kernel
