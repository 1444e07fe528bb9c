#include <ATen/ops/mul.h>
#include <ATen/ops/silu.h>

#include "attnres/ops/composed.h"
#include "attnres/ops/swiglu/swiglu.h"

namespace attnres {

at::Tensor swiglu_composed(const at::Tensor& gate, const at::Tensor& up) {
  note_composed("SwiGLU", gate);
  return at::mul(at::silu(gate), up);
}

}  // namespace attnres
