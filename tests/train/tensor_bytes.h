// Bytes of tensors that a thread has made: now, and the most at once.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <cstdint>
#include <memory>

namespace attnres::testing {

// Counts from when it is made until it is destroyed, by the same thread. What is freed by another
// thread, or was made before and is freed meanwhile, makes the count too small.
class TensorBytesOfThread {
 public:
  TensorBytesOfThread() : guard_(c10::DebugInfoKind::PROFILER_STATE, count_) {}

  int64_t peak() const { return count_->peak; }

 private:
  struct Count : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now += bytes;
      peak = std::max(peak, now);
    }
    bool memoryProfilingEnabled() const override { return true; }

    int64_t now = 0, peak = 0;
  };

  const std::shared_ptr<Count> count_ = std::make_shared<Count>();
  const c10::DebugInfoGuard guard_;
};

}  // namespace attnres::testing
