// RMSNorm and the addition before it on a GPU (kernel.h has the formulas). A block has a row at a
// time, which is read once and stays in registers.
#pragma once

#include "attnres/ops/cuda_sums.h"
#include "attnres/ops/rms_norm/kernel.h"

namespace attnres::gpu {

template <class Storage>
struct RmsNormForward {
  kernel::RmsNormForward<Storage> norm;
  int64_t tokens;
};

template <class Storage>
struct RmsNormBackward {
  kernel::RmsNormBackward<Storage> norm;
  int64_t tokens;
  float* sums;  // [runs, D]: the gain's gradient
};

template <class Storage, int kVectors>
struct RmsNormForwardKernel {
  using Operation = RmsNormForward<Storage>;
  static constexpr int kN = kNumbers<Storage>;
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 2;

  static int width(const Operation& op) { return static_cast<int>(op.norm.width); }
  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(width(op)); }
  static int64_t most_blocks(const Operation& op) { return op.tokens; }
  static int64_t shared_floats(const Operation& op) {
    return 2 * BlockSums::floats(1, threads(op) / kWarp);
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    int parity = 0;
    for (int64_t token = block.index(); token < op.tokens; token += block.count()) {
      row(block, op.norm, token, parity ^= 1);
    }
  }

 private:
  template <class Block>
  ATTNRES_DEVICE static void row(const Block& block, const kernel::RmsNormForward<Storage>& norm,
                                 int64_t token, int parity) {
    const int D = static_cast<int>(norm.width);
    float h[kVectors][kN], square[1] = {0};
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= D) continue;
      load_constant_row(norm.state_TD + token * D + c, h[i]);
      if (norm.pending_TD != nullptr) add(norm, token * D + c, h[i]);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) square[0] = fma(h[i][j], h[i][j], square[0]);
    }
    BlockSums sums(block.shared() + parity * BlockSums::floats(1, block.threads() / kWarp), 1);
    sums.give(block, 0, warp_sums(block, square));
    block.sync();
    const float rho = inverse_rms(sums.take(block, 0), D, static_cast<float>(norm.eps));
    if (block.thread() == 0 && norm.rho_T != nullptr) norm.rho_T[token] = rho;
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= D) continue;
      float gain[kN];
      load_constant_floats(norm.gain_D + c, gain);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) h[i][j] = gain[j] * (h[i][j] * rho);
      store_row(norm.y_TD + token * D + c, h[i]);
    }
  }

  // The sum, as it is rounded.
  ATTNRES_DEVICE static void add(const kernel::RmsNormForward<Storage>& norm, int64_t at,
                                 float (&h)[kN]) {
    float pending[kN];
    load_constant_row(norm.pending_TD + at, pending);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) h[j] += pending[j];
    const Packed<Storage, kN> sum = pack<Storage>(h);
    store(norm.h_TD + at, sum);
    unpack<Storage>(sum, h);
  }
};

template <class Storage, int kVectors>
struct RmsNormBackwardKernel {
  using Operation = RmsNormBackward<Storage>;
  static constexpr int kN = kNumbers<Storage>;
  static constexpr bool kBlockARun = true;
  static constexpr int kResidentBlocks = 1;

  static int width(const Operation& op) { return static_cast<int>(op.norm.width); }
  static int threads(const Operation& op) { return threads_of_width<kN, kVectors>(width(op)); }
  static int64_t most_blocks(const Operation& op) {
    return runs_of_tokens(op.tokens, op.norm.width);
  }
  static int64_t shared_floats(const Operation& op) {
    return 2 * BlockSums::floats(1, threads(op) / kWarp);
  }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const auto [first, last] = run_of_tokens(block, op.tokens);
    const int D = static_cast<int>(op.norm.width);
    float dgain[kVectors][kN] = {};
    Rows now, next;
    if (kAhead && first < last) fetch(block, op.norm, first, next);
    for (int64_t token = first; token < last; ++token) {
      if constexpr (kAhead) {
        now = next;
        if (token + 1 < last) fetch(block, op.norm, token + 1, next);
      } else {
        fetch(block, op.norm, token, now);
      }
      row(block, op.norm, token, now, dgain);
    }
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c < D) store_floats(op.sums + static_cast<int64_t>(block.index()) * D + c, dgain[i]);
    }
  }

 private:
  // Those of the next token are on their way while this one's are used, if there are registers.
  static constexpr bool kAhead = kVectors < 4;
  struct Rows {
    Packed<Storage, kN> h[kVectors], grad_y[kVectors], later[kVectors];
  };

  template <class Block>
  ATTNRES_DEVICE static void fetch(const Block& block, const kernel::RmsNormBackward<Storage>& norm,
                                   int64_t token, Rows& rows) {
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= norm.width) continue;
      const int64_t at = token * norm.width + c;
      rows.h[i] = load_constant<4>(norm.h_TD + at);
      rows.grad_y[i] = load_constant<4>(norm.grad_y_TD + at);
      if (norm.grad_later_TD != nullptr) rows.later[i] = load_constant<4>(norm.grad_later_TD + at);
    }
  }

  template <class Block>
  ATTNRES_DEVICE static void row(const Block& block, const kernel::RmsNormBackward<Storage>& norm,
                                 int64_t token, const Rows& rows, float (&dgain)[kVectors][kN]) {
    const int D = static_cast<int>(norm.width);
    float along[1] = {0};
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      if (channel<kN>(block, i) >= D) continue;
      float h[kN], u[kN], dy[kN];
      scaled_gradient(block, norm, rows, i, h, dy, u);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) along[0] = fma(u[j], h[j], along[0]);
    }
    const int parity = static_cast<int>(token & 1);
    BlockSums sums(block.shared() + parity * BlockSums::floats(1, block.threads() / kWarp), 1);
    sums.give(block, 0, warp_sums(block, along));
    block.sync();
    const float rho = norm.rho_T[token];
    const float back = quotient(rho * rho * rho * sums.take(block, 0), static_cast<float>(D));
    ATTNRES_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      const int c = channel<kN>(block, i);
      if (c >= D) continue;
      float h[kN], u[kN], dy[kN], later[kN] = {};
      scaled_gradient(block, norm, rows, i, h, dy, u);
      if (norm.grad_later_TD != nullptr) unpack<Storage>(rows.later[i], later);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        dgain[i][j] = fma(dy[j], h[j] * rho, dgain[i][j]);
        later[j] += fma(-back, h[j], rho * u[j]);
      }
      store_row(norm.grad_h_TD + token * D + c, later);
    }
  }

  // h, dy and u = gain * dy.
  template <class Block>
  ATTNRES_DEVICE static void scaled_gradient(const Block& block,
                                             const kernel::RmsNormBackward<Storage>& norm,
                                             const Rows& rows, int i, float (&h)[kN],
                                             float (&dy)[kN], float (&u)[kN]) {
    load_constant_floats(norm.gain_D + channel<kN>(block, i), u);
    unpack<Storage>(rows.h[i], h);
    unpack<Storage>(rows.grad_y[i], dy);
    ATTNRES_UNROLL
    for (int j = 0; j < kN; ++j) u[j] *= dy[j];
  }
};

// Both return false where there is no kernel for the width.
template <class Storage, class Launcher>
bool rms_norm_forward(const kernel::RmsNormForward<Storage>& norm, int64_t tokens,
                      const Launcher& launcher) {
  if (!has_width(norm.width)) return false;
  with_vectors<kNumbers<Storage>, 2>(static_cast<int>(norm.width), [&](auto vectors) {
    using Kernel = RmsNormForwardKernel<Storage, decltype(vectors)::value>;
    launcher.template launch<Kernel>({norm, tokens});
  });
  return true;
}

// Writes the gain's gradient; memory: runs_of_tokens(tokens, D) D floats.
template <class Storage, class Launcher>
bool rms_norm_backward(const kernel::RmsNormBackward<Storage>& norm, int64_t tokens, float* memory,
                       float* grad_gain_D, const Launcher& launcher) {
  if (!has_width(norm.width)) return false;
  with_vectors<kNumbers<Storage>, 2>(static_cast<int>(norm.width), [&](auto vectors) {
    using Kernel = RmsNormBackwardKernel<Storage, decltype(vectors)::value>;
    launcher.template launch<Kernel>({norm, tokens, memory});
  });
  add_runs(memory, runs_of_tokens(tokens, norm.width), norm.width, grad_gain_D, launcher);
  return true;
}

}  // namespace attnres::gpu
