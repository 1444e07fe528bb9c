// Kimi Delta Attention between its input and its output maps, forward alone. Raw pointers, no
// tensor library, no threads of its own. Heads do not meet: a call works on a range of them.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// Rows of numbers, of all sequences' tokens one after another, `stride` apart.
template <class Storage>
struct StridedRows {
  const Storage* first = nullptr;
  int64_t stride = 0;

  const Storage* row(int64_t i) const { return first + i * stride; }
};

// An operation on B sequences of T tokens each; H heads of K channels, P = H K. delta_attention.h
// has the formulas.
template <class Storage>
struct DeltaAttention {
  using T = Compute<Storage>;
  int64_t tokens, heads, width, conv_width;  // T, H, K, W
  StridedRows<Storage> inputs[3] = {};       // of queries, keys and values, P each
  StridedRows<Storage> decay, gate;          // P each
  StridedRows<Storage> beta;                 // H
  const T* conv_PW[3] = {};                  // of queries, keys and values
  const T *A_log_H, *dt_bias_P, *gain_K;
  T decay_bound, norm_eps;  // a bound of 0 is none
  // By sequence; changed. Each convolution's last W - 1 inputs, [W - 1, P], and the states,
  // [H, K, K].
  Storage* const* conv_inputs[3] = {};
  T* const* states;
  Storage* y;  // [B T, P]
};

// Heads [first, last) of the B H.
ATTNRES_DECLARE(delta_attention, DeltaAttention)

}  // namespace attnres::kernel
