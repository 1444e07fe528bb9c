// Sequences that belong together, between who asked for them and who computes them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string_view>
#include <utility>

#include "attnres/infer/text_engine.h"

namespace attnres {

class Exchange {
 public:
  using Time = std::chrono::steady_clock::time_point;
  struct Heard {
    size_t sequence = 0;  // which of them
    TextUpdate update = {};
    bool shuts_down = false;  // why it failed
  };

  // `gone`: whether the asker has left.
  explicit Exchange(std::function<bool()> gone = {}) : gone_(std::move(gone)) {}

  // For the asker. Waits for what comes next; nothing where the deadline comes before.
  std::optional<Heard> next(Time deadline);
  // Nothing more is wanted: what waits or runs of it fails before the next step.
  void cancel();

  // For who computes.
  bool ended() const;  // cancelled, or the asker has gone
  // Where there is no memory to keep what is heard, the asker hears that instead.
  void hear(Heard heard) noexcept;
  void fail(size_t sequence, std::string_view error, bool shuts_down = false) noexcept;

 private:
  mutable std::mutex mutex_;
  std::condition_variable heard_anew_;
  std::deque<Heard> heard_;
  bool lost_ = false;  // some of what was heard
  bool cancelled_ = false;
  std::function<bool()> gone_;
};

}  // namespace attnres
