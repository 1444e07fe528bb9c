#include "attnres/serve/exchange.h"

namespace attnres {

std::optional<Exchange::Heard> Exchange::next(Time deadline) {
  std::unique_lock lock(mutex_);
  if (!heard_anew_.wait_until(lock, deadline, [&] { return !heard_.empty(); })) return std::nullopt;
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

void Exchange::hear(Heard heard) {
  const std::lock_guard lock(mutex_);
  heard_.push_back(std::move(heard));
  heard_anew_.notify_one();
}

void Exchange::fail(size_t sequence, const std::string& error, bool shuts_down) {
  hear({sequence, {{.stopped = StopReason::failed, .error = error}}, shuts_down});
}

}  // namespace attnres
