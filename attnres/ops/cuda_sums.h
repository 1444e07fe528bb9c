// The second half of sums over tokens: runs' sums are added up in their order.
#pragma once

#include "attnres/ops/cuda_code.h"

namespace attnres::gpu {

struct SumOfRuns {
  const float* sums;  // [runs, columns]
  int runs, columns;
  float* to;  // [columns]
};

// A block has 32 columns, each of its warps a part of the runs.
struct SumOfRunsKernel {
  using Operation = SumOfRuns;
  static constexpr int kWarps = 16, kAtOnce = 8;  // loads that are under way together

  static int threads(const Operation&) { return kWarps * kWarp; }
  static constexpr bool kBlockARun = false;
  static constexpr int kResidentBlocks = 2;
  static int64_t most_blocks(const Operation& op) { return (op.columns + kWarp - 1) / kWarp; }
  static int64_t shared_floats(const Operation&) { return kWarps * kWarp; }

  template <class Block>
  ATTNRES_DEVICE static void run(const Block& block, const Operation& op) {
    const int lane = block.thread() % kWarp, warp = block.thread() / kWarp;
    const int first = op.runs * warp / kWarps, last = op.runs * (warp + 1) / kWarps;
    for (int c = block.index() * kWarp; c < op.columns; c += block.count() * kWarp) {
      const int column = c + lane;
      float sum = 0;
      for (int r = first; r < last && column < op.columns; r += kAtOnce) {
        float of_runs[kAtOnce];
        ATTNRES_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int64_t run = r + i < last ? r + i : first;
          of_runs[i] = op.sums[run * op.columns + column];
        }
        ATTNRES_UNROLL
        for (int i = 0; i < kAtOnce; ++i) sum += r + i < last ? of_runs[i] : 0.0f;
      }
      block.shared()[block.thread()] = sum;
      block.sync();
      if (warp == 0 && column < op.columns) {
        for (int w = 1; w < kWarps; ++w) sum += block.shared()[w * kWarp + lane];
        op.to[column] = sum;
      }
      block.sync();
    }
  }
};

// By a Launcher: launch<Kernel>(operation), on a GPU or in tests on the host.
template <class Launcher>
void add_runs(const float* sums, int runs, int64_t columns, float* to, const Launcher& launcher) {
  launcher.template launch<SumOfRunsKernel>({sums, runs, static_cast<int>(columns), to});
}

}  // namespace attnres::gpu
