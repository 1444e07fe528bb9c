// A grid of CUDA thread blocks on the host: a fiber a thread, which runs until it waits for others.
// Shared memory is poisoned, a block that can't go on fails, and copies are made as late, or as
// early, as they may be. What a kernel gives must not depend on that, nor on the order of threads.
#pragma once

#include <gtest/gtest.h>
#include <setjmp.h>
#include <ucontext.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "attnres/ops/cuda_code.h"

// The C library's _longjmp itself: what _FORTIFY_SOURCE puts in its place takes a jump to another
// stack for a fault.
extern "C" [[noreturn]] void attnres_jump(jmp_buf place, int value) __asm__("_longjmp");

namespace attnres::gpu {

// How threads take turns, and when copies to shared memory are made.
struct HostOrder {
  bool backwards = false;
  bool late_copies = false;  // when somebody waits for them; else when they begin
};

class HostGrid;

struct HostBlock {
  HostGrid* grid;
  int t, threads_of_block, b, blocks;

  int thread() const { return t; }
  int threads() const { return threads_of_block; }
  int index() const { return b; }
  int count() const { return blocks; }
  inline void sync() const;
  inline void sync_warp() const;
  inline float exchange(float x, int mask) const;
  inline float* shared() const;
  template <class Piece>
  void begin_copy(Piece* to, const void* from) const;
  void prefetch(const void*) const {}
  inline void end_copies() const;
  template <int kUnderWay>
  void wait_for_copies() const;
};

class HostGrid {
 public:
  HostGrid(int blocks, int threads, int64_t shared_floats, HostOrder order)
      : blocks_(blocks),
        order_(order),
        memory_(static_cast<size_t>(shared_floats) + kGuard + 4),
        threads_(static_cast<size_t>(threads)) {}

  template <class F>
  void run(const F& kernel) {
    kernel_ = [&](const HostBlock& block) { kernel(block); };
    for (Thread& thread : threads_) thread.stack = std::make_unique_for_overwrite<char[]>(kStack);
    for (int b = 0; b < blocks_; ++b) run_block(b);
  }

 private:
  friend struct HostBlock;
  static constexpr size_t kStack = 96 << 10, kGuard = 64;
  static constexpr int kBlockBarrier = 0, kNone = -1;  // a warp's is 1 + its number

  struct Copy {
    void* to;
    const void* from;
    size_t bytes;
  };
  struct Thread {
    ucontext_t start;  // where it begins
    jmp_buf place;     // and goes on: without the system calls of swapcontext
    bool started = false;
    std::unique_ptr<char[]> stack;
    bool done = false;
    int waits_at = kNone;
    float given[2] = {0, 0};
    int parity = 0;
    std::vector<Copy> begun;
    std::vector<std::vector<Copy>> under_way;
  };

  static void enter(unsigned low, unsigned high, int t, int b) {
    auto* grid = reinterpret_cast<HostGrid*>(static_cast<uintptr_t>(low) |
                                             static_cast<uintptr_t>(high) << 32);
    Thread& thread = grid->threads_[t];
    grid->kernel_({grid, t, static_cast<int>(grid->threads_.size()), b, grid->blocks_});
    thread.done = true;
    attnres_jump(grid->main_, 1);
  }

  // Lets a thread run until it waits, or is done.
  void resume(Thread& thread) {
    if (_setjmp(main_) != 0) return;
    if (std::exchange(thread.started, true)) attnres_jump(thread.place, 1);
    setcontext(&thread.start);
  }

  // 16 bytes are copied at once.
  float* shared() {
    auto address = reinterpret_cast<uintptr_t>(memory_.data());
    return memory_.data() + (16 - address % 16) % 16 / sizeof(float);
  }

  void run_block(int b) {
    std::fill(memory_.begin(), memory_.end(), std::numeric_limits<float>::quiet_NaN());
    arrived_.assign(1 + threads_.size() / kWarp, 0);
    for (int t = 0; t < std::ssize(threads_); ++t) start(t, b);
    for (int64_t left = std::ssize(threads_); left > 0;) {
      bool moved = false;
      for (int64_t i = 0; i < std::ssize(threads_); ++i) {
        Thread& thread = threads_[order_.backwards ? std::ssize(threads_) - 1 - i : i];
        if (thread.done || thread.waits_at != kNone) continue;
        moved = true;
        resume(thread);
        if (thread.done) --left;
      }
      ASSERT_TRUE(moved) << "threads wait for others that will not come";
    }
    for (size_t i = memory_.size() - kGuard; i < memory_.size(); ++i) {
      ASSERT_TRUE(memory_[i] != memory_[i]) << "shared memory is written beyond its end";
    }
  }

  void start(int t, int b) {
    Thread& thread = threads_[t];
    thread.done = thread.started = false;
    thread.waits_at = kNone;
    thread.begun.clear();
    thread.under_way.clear();
    getcontext(&thread.start);
    thread.start.uc_stack.ss_sp = thread.stack.get();
    thread.start.uc_stack.ss_size = kStack;
    thread.start.uc_link = nullptr;
    const auto self = reinterpret_cast<uintptr_t>(this);
    makecontext(&thread.start, reinterpret_cast<void (*)()>(&enter), 4, static_cast<unsigned>(self),
                static_cast<unsigned>(self >> 32), t, b);
  }

  // Until `expected` threads are here.
  void wait(int t, int barrier, int expected) {
    if (++arrived_[barrier] == expected) {
      arrived_[barrier] = 0;
      for (Thread& thread : threads_) {
        if (thread.waits_at == barrier) thread.waits_at = kNone;
      }
      return;
    }
    threads_[t].waits_at = barrier;
    if (_setjmp(threads_[t].place) == 0) attnres_jump(main_, 1);
  }

  void begin_copy(int t, const Copy& copy) {
    if (order_.late_copies) {
      threads_[t].begun.push_back(copy);
    } else {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
  }

  int blocks_;
  HostOrder order_;
  std::vector<float> memory_;
  std::vector<Thread> threads_;
  std::vector<int> arrived_;
  std::function<void(const HostBlock&)> kernel_;
  jmp_buf main_;
};

void HostBlock::sync() const {
  grid->wait(t, HostGrid::kBlockBarrier, threads_of_block);
}
void HostBlock::sync_warp() const {
  grid->wait(t, 1 + t / kWarp, kWarp);
}
// Two places for what is given, by turns: a lane can be one exchange ahead of another.
float HostBlock::exchange(float x, int mask) const {
  int& parity = grid->threads_[t].parity;
  parity ^= 1;
  const int place = parity;
  grid->threads_[t].given[place] = x;
  sync_warp();
  return grid->threads_[t ^ mask].given[place];
}
float* HostBlock::shared() const {
  return grid->shared();
}
template <class Piece>
void HostBlock::begin_copy(Piece* to, const void* from) const {
  EXPECT_EQ(reinterpret_cast<uintptr_t>(from) % sizeof *to, 0u);
  grid->begin_copy(t, {to, from, sizeof *to});
}
void HostBlock::end_copies() const {
  HostGrid::Thread& thread = grid->threads_[t];
  thread.under_way.push_back(std::exchange(thread.begun, {}));
}
template <int kUnderWay>
void HostBlock::wait_for_copies() const {
  auto& under_way = grid->threads_[t].under_way;
  while (std::ssize(under_way) > kUnderWay) {
    for (const HostGrid::Copy& copy : under_way.front()) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    }
    under_way.erase(under_way.begin());
  }
}

// Launches on the host: forward kernels by fewer blocks than they could have.
struct HostLauncher {
  HostOrder order;
  int64_t shared_memory = 227 << 10;
  int64_t most_forward_blocks = 3;

  int64_t shared_bytes() const { return shared_memory; }

  template <class Kernel>
  void launch(const typename Kernel::Operation& op) const {
    const int64_t blocks = blocks_of<Kernel>(op, most_forward_blocks);
    if (blocks == 0) return;
    HostGrid grid(static_cast<int>(blocks), Kernel::threads(op), Kernel::shared_floats(op), order);
    grid.run([&](const HostBlock& block) { Kernel::run(block, op); });
  }
};

}  // namespace attnres::gpu
