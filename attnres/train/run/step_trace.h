// A Chrome trace of one process's first steps: torch's operations, and on a GPU its kernels.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>

namespace attnres {

class StepTrace {
 public:
  // Of steps on this device into a file, which is there at once. Throws Error where it cannot be.
  StepTrace(std::filesystem::path file, c10::Device device);
  // Writes what there is of a run that ended before.
  ~StepTrace();
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  void before_step();
  void after_step();

 private:
  void write();

  std::filesystem::path file_;
  c10::Device device_;
  int64_t steps_ = 0;  // done
  bool is_tracing_ = false;
};

}  // namespace attnres
