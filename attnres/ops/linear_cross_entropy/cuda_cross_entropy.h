// Softmax and cross-entropy of rows of logits on a GPU, with their gradient: a block has a row,
// which it reads twice, the second time mostly from the L2 cache.
//
//   nll_c    = log sum_v exp(logits_cv) - logits_ct,   t = target_c
//   grad_cv  = scale (exp(logits_cv) / sum_u exp(logits_cu) - [v = t])
//
// Of a row whose target is negative both are 0.
#pragma once

#include "attnres/ops/cuda_code.h"

namespace attnres::gpu {

template <class Storage>
struct CrossEntropyRows {
  int64_t rows, vocabulary;  // a multiple of 8
  const float* logits_CV;
  const int64_t* targets_C;
  float scale;
  float* nll_C;
  Storage* grad_CV;  // null: not wanted; may be the logits
};

template <class Storage>
struct CrossEntropyKernel {
  using Operation = CrossEntropyRows<Storage>;
  static constexpr int kN = kNumbers<Storage>, kThreads = 512, kWarps = kThreads / kWarp;
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 2;

  static int threads(const Operation&) { return kThreads; }
  static int64_t most_blocks(const Operation& op) { return op.rows; }
  static int64_t shared_floats(const Operation&) { return 2 * kFloats; }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    int parity = 0;
    for (int64_t row = block.index(); row < op.rows; row += block.count()) {
      one_row(block, op, row, block.shared() + (parity ^= 1) * kFloats);
    }
  }

 private:
  static constexpr int kFloats = kWarps + BlockSums::floats(1, kWarps);
  static constexpr int kStep = kThreads * kN;

  // Sums are of exp(logit - largest).
  struct Normaliser {
    float largest, sum;
  };

  template <class Block>
  ATTNRES_DEVICE static void one_row(const Block& block, const Operation& op, int64_t row,
                                     float* memory) {
    const float* logits = op.logits_CV + row * op.vocabulary;
    const int64_t target = op.targets_C[row];
    const Normaliser all = of_block(block, of_thread(block, op, logits), memory);
    if (block.thread() == 0) {
      const bool counts = target >= 0 && target < op.vocabulary;
      op.nll_C[row] = counts ? logarithm(all.sum) + (all.largest - logits[target]) : 0.0f;
    }
    if (op.grad_CV == nullptr) return;
    // Before what is written may be the logit that the first thread reads.
    block.sync();
    const float scale = target >= 0 ? op.scale : 0.0f, factor = quotient(scale, all.sum);
    for (int64_t v = int64_t{block.thread()} * kN; v < op.vocabulary; v += kStep) {
      float x[kN];
      load_floats(logits + v, x);
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) {
        x[j] = exp_of_negative(x[j] - all.largest) * factor;
        if (v + j == target) x[j] -= scale;
      }
      store_row(op.grad_CV + row * op.vocabulary + v, x);
    }
  }

  template <class Block>
  ATTNRES_DEVICE static Normaliser of_thread(const Block& block, const Operation& op,
                                             const float* logits) {
    Normaliser own = {-INFINITY, 0.0f};
    for (int64_t v = int64_t{block.thread()} * kN; v < op.vocabulary; v += kStep) {
      float x[kN];
      load_floats(logits + v, x);
      float top = x[0];
      ATTNRES_UNROLL
      for (int j = 1; j < kN; ++j) top = larger(top, x[j]);
      if (top > own.largest) {
        own.sum *= exp_of_negative(own.largest - top);
        own.largest = top;
      }
      ATTNRES_UNROLL
      for (int j = 0; j < kN; ++j) own.sum += exp_of_negative(x[j] - own.largest);
    }
    return own;
  }

  template <class Block>
  ATTNRES_DEVICE static Normaliser of_block(const Block& block, Normaliser own, float* memory) {
    float largest = own.largest;
    for (int mask = 1; mask < kWarp; mask *= 2) {
      largest = larger(largest, block.exchange(largest, mask));
    }
    if (block.thread() % kWarp == 0) memory[block.thread() / kWarp] = largest;
    block.sync();
    for (int w = 0; w < kWarps; ++w) largest = larger(largest, memory[w]);
    float sum[1] = {own.sum > 0 ? own.sum * exp_of_negative(own.largest - largest) : own.sum};
    BlockSums sums(memory + kWarps, 1);
    sums.give(block, 0, warp_sums(block, sum));
    block.sync();
    return {largest, sums.take(block, 0)};
  }
};

// False where there is no kernel for the vocabulary.
template <class Storage, class Launcher>
bool cross_entropy(const CrossEntropyRows<Storage>& op, const Launcher& launcher) {
  if (op.vocabulary < 8 || op.vocabulary % 8 != 0) return false;
  launcher.template launch<CrossEntropyKernel<Storage>>(op);
  return true;
}

}  // namespace attnres::gpu
