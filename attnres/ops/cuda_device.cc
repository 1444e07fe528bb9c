// What the program asks of GPUs, entered when the CUDA library is loaded.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "attnres/support/compute_device.h"

namespace attnres {
namespace {

Gpus gpus_of_cuda() {
  Gpus gpus;
  int driver = 0, count = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver > 0) {
    gpus.driver = fmt::format("{}.{}", driver / 1000, driver % 1000 / 10);
  }
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (gpus.driver.empty()) {
    gpus.problem = "there is no NVIDIA driver here; nvidia-smi shows one and its GPUs";
  } else if (driver < CUDART_VERSION / 1000 * 1000) {
    gpus.problem = fmt::format(
        "the NVIDIA driver can run CUDA {}, and CUDA {} is needed: install a "
        "newer driver",
        gpus.driver, CUDART_VERSION / 1000);
  } else if (status != cudaSuccess || count == 0) {
    gpus.problem = fmt::format("no GPU can be used: {}; see CUDA_VISIBLE_DEVICES and nvidia-smi",
                               cudaGetErrorString(status));
  }
  if (!gpus.problem.empty()) return gpus;
  for (int i = 0; i < count; ++i) {
    cudaDeviceProp properties{};
    if (const cudaError_t of_gpu = cudaGetDeviceProperties(&properties, i); of_gpu != cudaSuccess) {
      gpus.problem = fmt::format("GPU {} cannot be used: {}", i, cudaGetErrorString(of_gpu));
    }
    gpus.all.push_back({properties.name, static_cast<int64_t>(properties.totalGlobalMem)});
  }
  return gpus;
}

int64_t free_memory_of(int gpu) {
  const c10::cuda::CUDAGuard device(static_cast<c10::DeviceIndex>(gpu));
  size_t free = 0, memory = 0;
  if (cudaMemGetInfo(&free, &memory) != cudaSuccess) return 0;
  return static_cast<int64_t>(free);
}

int64_t peak_memory_of(int gpu) {
  namespace allocator = c10::cuda::CUDACachingAllocator;
  const auto stats = allocator::getDeviceStats(static_cast<c10::DeviceIndex>(gpu));
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return stats.reserved_bytes[kAll].peak;
}

constexpr GpuLibrary kLibrary = {&gpus_of_cuda, &free_memory_of, &peak_memory_of};
[[maybe_unused]] const bool kEntered = (gpu_library = &kLibrary, true);

}  // namespace
}  // namespace attnres
