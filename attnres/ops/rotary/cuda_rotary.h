// Rotary position embedding on a GPU (kernel.h has the formula): a thread turns 16 bytes of each
// half of a head.
#pragma once

#include "attnres/ops/cuda_code.h"
#include "attnres/ops/rotary/kernel.h"

namespace attnres::gpu {

template <class Storage>
struct Rotary {
  kernel::Rotary<Storage> rotary;
  int64_t rows;
};

template <class Storage>
struct RotaryKernel {
  using Operation = Rotary<Storage>;
  static constexpr int kN = kNumbers<Storage>, kThreads = 256;
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 2;

  static int threads(const Operation&) { return kThreads; }
  static int64_t most_blocks(const Operation& op) { return (items(op) + kThreads - 1) / kThreads; }
  static int64_t shared_floats(const Operation&) { return 0; }
  static constexpr int64_t items(const Operation& op) {
    return op.rows * op.rotary.heads * (op.rotary.half / kN);
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const auto& [num_tokens, heads, half, cosine, sine, x, y] = op.rotary;
    const int64_t of_head = half / kN, all = items(op);
    for (int64_t i = int64_t{block.index()} * kThreads + block.thread(); i < all;
         i += int64_t{block.count()} * kThreads) {
      const int64_t head = i / of_head, k = i % of_head * kN;
      const int64_t angle = head / heads % num_tokens * half + k, at = 2 * head * half + k;
      float a[kN], b[kN], c[kN], s[kN], turned[kN];
      load_constant_floats(cosine + angle, c);
      load_constant_floats(sine + angle, s);
      load_constant_row(x + at, a);
      load_constant_row(x + at + half, b);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) turned[j] = fma(-b[j], s[j], a[j] * c[j]);
      store_row(y + at, turned);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) turned[j] = fma(a[j], s[j], b[j] * c[j]);
      store_row(y + at + half, turned);
    }
  }
};

// False where there is no kernel: half a head is no multiple of 8.
template <class Storage, class Launcher>
bool rotary(const kernel::Rotary<Storage>& op, int64_t rows, const Launcher& launcher) {
  if (op.half % 8 != 0) return false;
  launcher.template launch<RotaryKernel<Storage>>({op, rows});
  return true;
}

}  // namespace attnres::gpu
