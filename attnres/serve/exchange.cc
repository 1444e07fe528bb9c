#include "attnres/serve/exchange.h"

#include <new>
#include <string>

namespace attnres {

std::optional<Exchange::Heard> Exchange::next(Time deadline) {
  std::unique_lock lock(mutex_);
  if (!heard_anew_.wait_until(lock, deadline, [&] { return lost_ || !heard_.empty(); })) {
    return std::nullopt;
  }
  if (lost_) return Heard{.update = {{.stopped = StopReason::failed, .error = "memory ran out"}}};
  Heard heard = std::move(heard_.front());
  heard_.pop_front();
  return heard;
}

void Exchange::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  gone_ = nullptr;
}

bool Exchange::ended() const {
  const std::lock_guard lock(mutex_);
  return cancelled_ || (gone_ && gone_());
}

void Exchange::hear(Heard heard) noexcept {
  const std::lock_guard lock(mutex_);
  try {
    heard_.push_back(std::move(heard));
  } catch (const std::bad_alloc&) {
    lost_ = true;
  }
  heard_anew_.notify_one();
}

void Exchange::fail(size_t sequence, std::string_view error, bool shuts_down) noexcept {
  try {
    hear({sequence, {{.stopped = StopReason::failed, .error = std::string(error)}}, shuts_down});
  } catch (const std::bad_alloc&) {
    const std::lock_guard lock(mutex_);
    lost_ = true;
    heard_anew_.notify_one();
  }
}

}  // namespace attnres
