// The gated activation SiTU, element by element. Raw pointers, no tensor library, no threads of its
// own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// Rows of `width` numbers; those of gate and up are `stride` apart. A linear_beta of 0 is none.
template <class Storage>
struct Situ {
  const Storage *gate, *up;
  int64_t width, gate_stride, up_stride;
  Compute<Storage> beta, linear_beta;
};

// y = bounded(gate, beta) sigma(gate) bounded(up, linear_beta), bounded(x, b) = b tanh(x / b); up
// itself where linear_beta is 0.
template <class Storage>
struct SituForward {
  Situ<Storage> of;
  Storage* y;
};

// With slope(x, b) = 1 - tanh(x / b)^2, which is 1 where there is no bound,
//   dgate = dy bounded(up) sigma(gate) (slope(gate, beta) + bounded(gate) (1 - sigma(gate)))
//   dup = dy bounded(gate) sigma(gate) slope(up, linear_beta)
template <class Storage>
struct SituBackward {
  Situ<Storage> of;
  const Storage* grad_y;
  Storage *grad_gate, *grad_up;
};

// Elements [first, last) of y.
ATTNRES_DECLARE(situ_forward, SituForward)
ATTNRES_DECLARE(situ_backward, SituBackward)

}  // namespace attnres::kernel
