#include "attnres/support/compute_device.h"

#include <dlfcn.h>

#include <filesystem>

#include "attnres/support/error.h"
#include "attnres/support/own_library.h"

namespace attnres {
namespace fs = std::filesystem;
namespace {

c10::Device device_of_process = c10::kCPU;

// Why it cannot be loaded, or nothing.
std::string load_library() {
  if (gpu_library != nullptr) return "";
  const fs::path path = own_library("libattnres_cuda.so");
  if (!fs::exists(path)) {
    return fmt::format("this build has no kernels for GPUs; scripts/setup --cuda builds them ({})",
                       path.string());
  }
  if (dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return fmt::format(
        "the library for GPUs cannot be loaded: {}; scripts/setup --cuda brings what "
        "it needs",
        dlerror());
  }
  return gpu_library != nullptr ? "" : fmt::format("{} is not ours", path.string());
}

}  // namespace

const GpuLibrary* gpu_library = nullptr;

Gpus find_gpus() {
  const std::string problem = load_library();
  return problem.empty() ? gpu_library->list() : Gpus{.all = {}, .driver = {}, .problem = problem};
}

c10::Device compute_device() {
  return device_of_process;
}

void set_compute_device(c10::Device device) {
  device_of_process = device;
}

c10::Device find_device(const std::string& name) {
  const c10::Device device(name == "cuda" ? "cuda:0" : name);
  if (device.is_cuda()) {
    const Gpus gpus = find_gpus();
    require_usage(gpus.problem.empty(), "--device {}: {}", name, gpus.problem);
    require_usage(
        device.index() < std::ssize(gpus.all),
        "--device {}: this process sees {} GPUs, of which the first is cuda:0; attnres doctor "
        "lists them",
        name, gpus.all.size());
  }
  return device;
}

DeviceMemory device_memory(c10::Device device) {
  if (device.is_cpu()) return {};
  const Gpus gpus = gpu_library == nullptr ? Gpus() : gpu_library->list();
  const int index = device.index();
  if (index < 0 || index >= std::ssize(gpus.all)) return {.name = device.str()};
  return {.name = fmt::format("{} ({})", device.str(), gpus.all[index].name),
          .all = gpus.all[index].memory,
          .free = gpu_library->free_memory(index)};
}

int64_t peak_device_memory(c10::Device device) {
  if (device.is_cpu() || gpu_library == nullptr) return 0;
  return gpu_library->peak_memory(device.index());
}

}  // namespace attnres
