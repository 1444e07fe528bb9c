// The gated delta rule token by token, forward alone. Raw pointers, no tensor library, no threads
// of its own. The columns of a state do not meet: a call works on a range of pieces, each 64
// columns of one head's state, which stay in the core's cache for all tokens.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

inline constexpr int64_t kDeltaRuleColumns = 64;

// What every head of every sequence computes, token by token:
//   S <- diag(a) S,   S <- S + beta k (v - k^T S)^T,   o = S^T q
template <class Storage>
struct GatedDeltaRule {
  using T = Compute<Storage>;
  int64_t tokens, heads, key_width, value_width;  // T, H, K, V
  const T *q, *k, *decay;                         // [B, T, H, K]; decay is a
  const Storage* v;                               // [B, T, H, V]
  const T* beta;                                  // [B, T, H]
  const T* state;                                 // [B, H, K, V], before the first token
  Storage* o;                                     // [B, T, H, V]
  T* new_state;                                   // [B, H, K, V], after the last

  // Pieces of a head. Piece i is of head i / pieces of B H.
  int64_t pieces() const { return (value_width + kDeltaRuleColumns - 1) / kDeltaRuleColumns; }
};

// Pieces [first, last).
ATTNRES_DECLARE(gated_delta_rule, GatedDeltaRule)

}  // namespace attnres::kernel
