// The last requests that were finished, for /v1/depth of one of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace attnres {

// From any thread.
class FinishedRequests {
 public:
  static constexpr size_t kMost = 64;

  // With the ids of its first sequence.
  void add(const std::string& request, const std::vector<int32_t>& ids) {
    const std::lock_guard lock(mutex_);
    ids_.emplace(request, ids);
    order_.push_back(request);
    if (order_.size() <= kMost) return;
    ids_.erase(order_.front());
    order_.pop_front();
  }
  // Nothing where it is none of them.
  std::optional<std::vector<int32_t>> find(const std::string& request) const {
    const std::lock_guard lock(mutex_);
    const auto found = ids_.find(request);
    if (found == ids_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::vector<int32_t>> ids_;
  std::deque<std::string> order_;
};

}  // namespace attnres
