// Doubly stochastic matrices of many tokens, as many tokens at once as a vector has numbers. Raw
// pointers, no tensor library, no threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// In every round each column of exp(logits) is divided by its sum, then each row by its own.
// Matrices are m x m, entry after entry, and an entry's numbers those of all tokens.
template <class T>
struct Sinkhorn {
  int64_t size, rounds, tokens;  // m
  const T* logits_MMT;
  T* matrices_MMT;
};

template <class T>
struct SinkhornBackward {
  Sinkhorn<T> forward;  // without its result
  const T* grad_matrices_MMT;
  T* grad_logits_MMT;
};

// Tokens [first, last).
ATTNRES_DECLARE_NUMBERS(sinkhorn, Sinkhorn)

// Computes the rounds again, and keeps what each leaves: 2 m^2 rounds vectors.
ATTNRES_DECLARE_NUMBERS(sinkhorn_backward, SinkhornBackward)

}  // namespace attnres::kernel
