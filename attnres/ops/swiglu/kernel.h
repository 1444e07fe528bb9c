// The gated activation of SwiGLU, element by element. Raw pointers, no tensor library, no threads
// of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// y = silu(gate) * up, silu(g) = g sigma(g)
template <class Storage>
struct SwigluForward {
  const Storage *gate, *up;
  Storage* y;
};

// dgate = dy up sigma(gate) (1 + gate (1 - sigma(gate))),  dup = dy silu(gate)
template <class Storage>
struct SwigluBackward {
  const Storage *gate, *up, *grad_y;
  Storage *grad_gate, *grad_up;
};

// Elements [first, last).
ATTNRES_DECLARE(swiglu_forward, SwigluForward)
ATTNRES_DECLARE(swiglu_backward, SwigluBackward)

}  // namespace attnres::kernel
