// Memory and times of benchmarks on a GPU.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <vector>

#include "attnres/ops/cuda_launch.h"

namespace attnres::gpu {

inline cudaStream_t stream;
inline int repeats = 15;
constexpr int kCalls = 4;

// Uniform in [-1, 1), by a hash of the place.
template <class Storage>
__global__ void draw(Storage* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < count;
       i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u ^ seed;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    const float value = static_cast<float>(static_cast<int32_t>(x ^ (x >> 16))) * 0x1p-31f;
    if constexpr (sizeof(Storage) == 4) {
      to[i] = value;
    } else {
      to[i].bits = static_cast<uint16_t>(rounded_pair(value, 0));
    }
  }
}

class Memory {
 public:
  ~Memory() {
    for (void* piece : pieces_) cudaFree(piece);
  }
  template <class Storage>
  Storage* rows(int64_t count) {
    void* piece = nullptr;
    check_cuda(cudaMalloc(&piece, static_cast<size_t>(count) * sizeof(Storage)), "memory");
    pieces_.push_back(piece);
    auto* rows = static_cast<Storage*>(piece);
    draw<<<1024, 256, 0, stream>>>(rows, count, static_cast<uint32_t>(pieces_.size()));
    return rows;
  }
  template <class Storage>
  std::vector<Storage*> many(int64_t n, int64_t count) {
    std::vector<Storage*> all;
    while (static_cast<int64_t>(all.size()) < n) all.push_back(rows<Storage>(count));
    return all;
  }

 private:
  std::vector<void*> pieces_;
};

// The median of times of some calls in a row, in milliseconds a call.
template <class F>
double milliseconds(const F& call) {
  std::vector<float> times(static_cast<size_t>(repeats));
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  for (int i = 1; i < repeats && i < 4; ++i) call();
  for (float& time : times) {
    check_cuda(cudaEventRecord(begin, stream), "event");
    for (int i = 0; i < (repeats > 1 ? kCalls : 1); ++i) call();
    check_cuda(cudaEventRecord(end, stream), "event");
    check_cuda(cudaEventSynchronize(end), "kernel");
    check_cuda(cudaEventElapsedTime(&time, begin, end), "time");
    time /= kCalls;
  }
  std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
  return times[static_cast<size_t>(repeats / 2)];
}

inline double copy_rate() {
  Memory memory;
  constexpr int64_t kBytes = int64_t{1} << 30;
  auto *from = memory.rows<float>(kBytes / 4), *to = memory.rows<float>(kBytes / 4);
  return 2e-6 * kBytes / milliseconds([&] {
           check_cuda(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDeviceToDevice, stream), "copy");
         });
}

}  // namespace attnres::gpu
