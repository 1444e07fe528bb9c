// How often operations of the dispatcher are called.
#pragma once

#include <ATen/record_function.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace attnres::testing {

// Counts the calls of this thread while it lives. One at a time.
class OperationCounts {
 public:
  OperationCounts() : handle_(at::addThreadLocalCallback(at::RecordFunctionCallback(&count))) {
    counts().clear();
  }
  ~OperationCounts() { at::removeCallback(handle_); }
  OperationCounts(const OperationCounts&) = delete;
  OperationCounts& operator=(const OperationCounts&) = delete;

  // Of the operation of this name, such as "aten::cat".
  int64_t of(const std::string& name) const {
    const auto found = counts().find(name);
    return found != counts().end() ? found->second : 0;
  }
  int64_t all() const {
    int64_t sum = 0;
    for (const auto& [name, times] : counts()) sum += times;
    return sum;
  }

 private:
  static std::map<std::string, int64_t>& counts() {
    thread_local std::map<std::string, int64_t> counts;
    return counts;
  }
  static std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& function) {
    ++counts()[function.name()];
    return nullptr;
  }

  at::CallbackHandle handle_;
};

}  // namespace attnres::testing
