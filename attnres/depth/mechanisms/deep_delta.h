// Deep Delta Learning (Zhang et al., arXiv 2601.00417): the state is a matrix X [d, d_v] a token,
// and a sublayer's output the direction k along which it is rewritten:
//   X <- X + beta k (v^T - k^T X) = (I - beta k k^T) X + beta k v^T
//   x = sum_t r_t * X_t,  u = norm(x),  k = f(u) / |f(u)|,  v = W_v u,  beta = 2 sg(w . u + b)
// X_t is column t of X, r [d, d_v] the site's read-out, sg the sigmoid. beta is between 0 (nothing
// happens), 1 (k's component is replaced by v) and 2 (a reflection). The output site reads like any
// other. X starts as d_v copies of the embedding; d_v is the setting `value_channels`. With d_v = 1
// there is no r: x = X.
//
// Start: r = 1/d_v, W_v as the model's other maps, w = 0 and b = 0, so that beta = 1: not residual.
//
// k = f / sqrt(|f|^2 + 1e-10), as the authors' code has it. That code differs in two things which
// the formula leaves open: v = 4 sg(W_v x + c) of the state before its norm, and short convolutions
// over tokens before r; neither is here. With weights held (depth_mixer.h), beta, v, |f| and the
// erased direction are constants, k in the write is not.
#pragma once

#include "attnres/depth/mechanism.h"

namespace attnres {

Mechanism deep_delta_mechanism();

}  // namespace attnres
