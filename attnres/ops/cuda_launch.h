// Launches of kernels on a GPU, for the sources that nvcc compiles.
#pragma once

#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "attnres/ops/cuda_code.h"

namespace attnres::gpu {

// Threads a block are at most kMostThreads, of which an SM has room for Kernel::kResidentBlocks.
template <class Kernel>
__global__ void __launch_bounds__(kMostThreads, Kernel::kResidentBlocks)
    run_kernel(const __grid_constant__ typename Kernel::Operation op) {
  Kernel::run(CudaBlock{}, op);
}

inline void check_cuda(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  throw std::runtime_error(std::string("CUDA: ") + what + ": " + cudaGetErrorString(status));
}

// On the current device.
class CudaLauncher {
 public:
  explicit CudaLauncher(void* stream) : stream_(static_cast<cudaStream_t>(stream)) {}

  int64_t shared_bytes() const { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin); }

  // By as many blocks as can be there at once, or as the kernel says.
  template <class Kernel>
  void launch(const typename Kernel::Operation& op) const {
    const auto shared = static_cast<int>(4 * Kernel::shared_floats(op));
    const int threads = Kernel::threads(op);
    const int64_t blocks = blocks_of<Kernel>(op, resident_blocks<Kernel>(threads, shared));
    if (blocks == 0) return;
    run_kernel<Kernel><<<static_cast<unsigned>(blocks), threads, shared, stream_>>>(op);
    check_cuda(cudaGetLastError(), "launch");
  }

 private:
  // On all multiprocessors. Asking takes longer than a small kernel, and calls are mostly alike.
  template <class Kernel>
  static int64_t resident_blocks(int threads, int shared) {
    struct Answer {
      int device = -1, threads = 0, shared = 0;
      int64_t blocks = 0;
    };
    static thread_local Answer last;
    int device = 0;
    check_cuda(cudaGetDevice(&device), "device");
    if (device == last.device && threads == last.threads && shared == last.shared) {
      return last.blocks;
    }
    // All that there is: what this call needs would take from another thread what its needs.
    check_cuda(cudaFuncSetAttribute(run_kernel<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin)),
               "shared memory");
    int of_one = 0;
    check_cuda(
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_one, run_kernel<Kernel>, threads, shared),
        "occupancy");
    last = {device, threads, shared, int64_t{of_one} * attribute(cudaDevAttrMultiProcessorCount)};
    return last.blocks;
  }

  static int attribute(cudaDeviceAttr which) {
    int device = 0, value = 0;
    check_cuda(cudaGetDevice(&device), "device");
    check_cuda(cudaDeviceGetAttribute(&value, which, device), "attribute");
    return value;
  }

  cudaStream_t stream_;
};

}  // namespace attnres::gpu
