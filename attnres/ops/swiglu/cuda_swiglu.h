// The gated activation of SwiGLU on a GPU (kernel.h has the formulas): 16 bytes a thread and turn.
#pragma once

#include "attnres/ops/cuda_code.h"
#include "attnres/ops/swiglu/kernel.h"

namespace attnres::gpu {

// 1 / (1 + e^-x)
ATTNRES_DEVICE float sigmoid(float x) {
  const float e = exp_of_negative(x < 0 ? x : -x);
  return quotient(x < 0 ? e : 1.0f, 1.0f + e);
}

// Of numbers whose count is a multiple of 8.
template <class Activation>
struct SwigluOperation {
  Activation activation;
  int64_t numbers;
};

template <class Storage, class Activation>
struct SwigluKernel {
  using Operation = SwigluOperation<Activation>;
  static constexpr int kN = kNumbers<Storage>, kThreads = 256;
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 2;

  static int threads(const Operation&) { return kThreads; }
  static int64_t most_blocks(const Operation& op) {
    return (op.numbers / kN + kThreads - 1) / kThreads;
  }
  static int64_t shared_floats(const Operation&) { return 0; }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const int64_t stride = int64_t{block.count()} * kThreads;
    for (int64_t i = int64_t{block.index()} * kThreads + block.thread(); i < op.numbers / kN;
         i += stride) {
      activate(op.activation, i * kN);
    }
  }

 private:
  ATTNRES_DEVICE static void activate(const kernel::SwigluForward<Storage>& op, int64_t at) {
    float gate[kN], up[kN];
    load_constant_row(op.gate + at, gate);
    load_constant_row(op.up + at, up);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) up[j] *= gate[j] * sigmoid(gate[j]);
    store_row(op.y + at, up);
  }

  ATTNRES_DEVICE static void activate(const kernel::SwigluBackward<Storage>& op, int64_t at) {
    float gate[kN], up[kN], dy[kN];
    load_constant_row(op.gate + at, gate);
    load_constant_row(op.up + at, up);
    load_constant_row(op.grad_y + at, dy);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) {
      const float sigma = sigmoid(gate[j]), silu = gate[j] * sigma;
      gate[j] = dy[j] * up[j] * fma(silu, 1.0f - sigma, sigma);
      up[j] = dy[j] * silu;
    }
    store_row(op.grad_gate + at, gate);
    store_row(op.grad_up + at, up);
  }
};

// SwigluForward or SwigluBackward of kernel.h; false where there is no kernel for so many numbers.
template <class Storage, template <class> class Activation, class Launcher>
bool swiglu(const Activation<Storage>& activation, int64_t numbers, const Launcher& launcher) {
  if (numbers % 8 != 0) return false;
  launcher.template launch<SwigluKernel<Storage, Activation<Storage>>>({activation, numbers});
  return true;
}

}  // namespace attnres::gpu
