// Who is served at this moment, and who gives way to others.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>

namespace attnres {

class HttpSeats {
 public:
  // What a connection waits for: in this order they give way to others.
  enum class Waits { for_request, for_rest_of_request, for_client_to_read, for_none };

  class Seat {
   private:
    friend class HttpSeats;
    int socket = -1;
    Waits waits = Waits::for_request;
    std::chrono::steady_clock::time_point since = std::chrono::steady_clock::now();
    bool gives_way = false;
  };
  using Taken = std::list<Seat>::iterator;

  // `most` at once; who has waited for less than `grace_seconds` doesn't give way.
  HttpSeats(int64_t most, double grace_seconds) : most_(most), grace_(grace_seconds) {}

  // A seat for the socket, if need be that of the connection that has waited longest. False where
  // there is none, or the server ends.
  bool take(int socket, Taken* seat);
  // The socket is closed after this.
  void leave(Taken seat);
  // From its connection's thread: false where it has to give way, or waits for a request and the
  // server ends.
  bool set(Taken seat, Waits waits);
  Waits waits(Taken seat) const;
  bool gives_way(Taken seat) const;

  // Whoever waits longest gives way at once. False where nobody waits.
  bool make_room();
  // Of the others, whoever has waited longest for the rest of a request gives way.
  void make_room_for_a_body(Taken seat);
  // Those that wait for a request give way, and nobody else comes.
  void end();
  // Waits until all seats are left.
  void wait_for_all() const;

 private:
  using Duration = std::chrono::duration<double>;

  // Of those `among` which it may be.
  bool make_room_after(
      Duration grace,
      const std::function<bool(const Seat&)>& among = [](const Seat&) { return true; });
  void dismiss(Seat* seat);

  const int64_t most_;
  const Duration grace_;
  mutable std::mutex mutex_;
  mutable std::condition_variable left_;
  std::list<Seat> seats_;
  int64_t taken_ = 0;  // of these, that don't give way
  bool ended_ = false;
};

}  // namespace attnres
