// How many bytes of requests' bodies are held at once, of all connections together. The first 64
// KiB of each are free, so that nobody's large bodies keep out others' prompts.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

namespace attnres {

class HttpBodies {
 public:
  explicit HttpBodies(int64_t most) : most_(most) {}

  // Such a body is read in turn with others, and what it took is given back to the system.
  static bool is_large(int64_t body_bytes) { return body_bytes >= 1 << 20; }

  // What one body has of them.
  class Share {
   public:
    explicit Share(HttpBodies& bodies) : bodies_(bodies) {}
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;
    ~Share() { give_back(); }

    // Before a body has so many bytes. False where there is no room for them.
    bool grow_to(int64_t body_bytes) {
      constexpr int64_t kFree = 64 << 10;
      const int64_t more = std::max<int64_t>(body_bytes - kFree, 0) - bytes_;
      if (bodies_.held_.fetch_add(more) + more > bodies_.most_) {
        bodies_.held_ -= more;
        return false;
      }
      bytes_ += more;
      return true;
    }

    // The body is no longer there. It had so many bytes, beyond those that are free.
    int64_t give_back() {
      bodies_.held_ -= bytes_;
      return std::exchange(bytes_, 0);
    }

   private:
    HttpBodies& bodies_;
    int64_t bytes_ = 0;
  };

 private:
  const int64_t most_;
  std::atomic<int64_t> held_ = 0;
};

}  // namespace attnres
