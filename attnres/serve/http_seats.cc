#include "attnres/serve/http_seats.h"

#include <sys/socket.h>

#include <tuple>

namespace attnres {

bool HttpSeats::take(int socket, Taken* seat) {
  const std::lock_guard lock(mutex_);
  if (ended_ || (taken_ >= most_ && !make_room_after(grace_))) return false;
  *seat = seats_.emplace(seats_.end());
  (*seat)->socket = socket;
  ++taken_;
  return true;
}

void HttpSeats::leave(Taken seat) {
  const std::lock_guard lock(mutex_);
  if (!seat->gives_way) --taken_;
  seats_.erase(seat);
  left_.notify_all();
}

bool HttpSeats::set(Taken seat, Waits waits) {
  const std::lock_guard lock(mutex_);
  if (seat->gives_way || (ended_ && waits == Waits::for_request)) return false;
  if (seat->waits != waits) seat->since = std::chrono::steady_clock::now();
  seat->waits = waits;
  return true;
}

HttpSeats::Waits HttpSeats::waits(Taken seat) const {
  const std::lock_guard lock(mutex_);
  return seat->waits;
}

bool HttpSeats::gives_way(Taken seat) const {
  const std::lock_guard lock(mutex_);
  return seat->gives_way;
}

bool HttpSeats::make_room() {
  const std::lock_guard lock(mutex_);
  return make_room_after(Duration(0));
}

void HttpSeats::make_room_for_a_body(Taken seat) {
  const std::lock_guard lock(mutex_);
  make_room_after(grace_, [&](const Seat& other) {
    return &other != &*seat && other.waits == Waits::for_rest_of_request;
  });
}

bool HttpSeats::make_room_after(Duration grace, const std::function<bool(const Seat&)>& among) {
  const auto now = std::chrono::steady_clock::now();
  Seat* first = nullptr;
  for (Seat& seat : seats_) {
    if (seat.gives_way || seat.waits == Waits::for_none || now - seat.since < grace) continue;
    if (!among(seat)) continue;
    if (first == nullptr ||
        std::tie(seat.waits, seat.since) < std::tie(first->waits, first->since)) {
      first = &seat;
    }
  }
  if (first == nullptr) return false;
  dismiss(first);
  return true;
}

// Its thread wakes up. One that waits for the rest of a request still tells its client why.
void HttpSeats::dismiss(Seat* seat) {
  seat->gives_way = true;
  --taken_;
  ::shutdown(seat->socket, seat->waits == Waits::for_client_to_read ? SHUT_RDWR : SHUT_RD);
}

void HttpSeats::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  for (Seat& seat : seats_) {
    if (!seat.gives_way && seat.waits == Waits::for_request) dismiss(&seat);
  }
}

void HttpSeats::wait_for_all() const {
  std::unique_lock lock(mutex_);
  left_.wait(lock, [&] { return seats_.empty(); });
}

}  // namespace attnres
