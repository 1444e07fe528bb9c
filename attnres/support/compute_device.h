// Where models are computed: the CPU, or a GPU, whose kernels are a library that is loaded when one
// is asked for.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

namespace attnres {

struct Gpu {
  std::string name;
  int64_t memory;  // bytes
};

// Those that can be used; where there are none, `problem` says why, and what to do.
struct Gpus {
  std::vector<Gpu> all;
  std::string
      driver;  // the newest CUDA version that it can run, such as 13.0; empty: there is none
  std::string problem;
};

// What libattnres_cuda.so enters when it is loaded.
struct GpuLibrary {
  Gpus (*list)();
  int64_t (*free_memory)(int gpu);
  int64_t (*peak_memory)(int gpu);
};
extern const GpuLibrary* gpu_library;

// Loads the library, if it is there.
Gpus find_gpus();

// That of this process, which a command names before it loads or makes models; the CPU at first.
c10::Device compute_device();
void set_compute_device(c10::Device device);

// "cpu", "cuda" or "cuda:N". Throws UsageError where there is no such device.
c10::Device find_device(const std::string& name);

// Memory of a device that is not the CPU, in bytes; zeros where nothing is known of it, and of the
// CPU, which has no name here either.
struct DeviceMemory {
  std::string name = {};  // of the device, such as "cuda:0 (NVIDIA H100)"
  int64_t all = 0;
  int64_t free = 0;  // that this process can still allocate
};
DeviceMemory device_memory(c10::Device device);

// Bytes of it that this process took at most, for tensors and to have them ready for later ones.
int64_t peak_device_memory(c10::Device device);

}  // namespace attnres
