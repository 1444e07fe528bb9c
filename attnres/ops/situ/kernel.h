// The gated activation SiTU, element by element, forward alone. Raw pointers, no tensor library, no
// threads of its own.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

namespace attnres::kernel {

// y = bounded(gate, beta) sigma(gate) bounded(up, linear_beta), bounded(x, b) = b tanh(x / b); x
// itself where linear_beta is 0. Rows of `width` numbers; those of gate and up are `stride` apart.
template <class Storage>
struct Situ {
  const Storage *gate, *up;
  int64_t width, gate_stride, up_stride;
  Compute<Storage> beta, linear_beta;
  Storage* y;
};

// Elements [first, last) of y.
void situ(const Situ<float>&, int64_t first, int64_t last);
void situ(const Situ<double>&, int64_t first, int64_t last);
void situ(const Situ<BFloat16>&, int64_t first, int64_t last);

}  // namespace attnres::kernel
