// One client's connection: requests that have to arrive in time and be of bounded size, and what is
// sent to it.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "attnres/serve/http_bodies.h"
#include "attnres/serve/http_head.h"
#include "attnres/serve/http_seats.h"
#include "attnres/serve/settings.h"

namespace attnres {

class HttpConnection {
 public:
  // The client has gone in the middle of a request.
  struct Gone {};

  HttpConnection(int socket, const HttpLimits& limits, HttpSeats& seats, HttpSeats::Taken seat,
                 HttpBodies& bodies)
      : socket_(socket), limits_(limits), seats_(seats), seat_(seat), body_(bodies) {}

  // Whether the client has closed the connection, or said that it sends nothing more: which of the
  // two cannot be told before something is sent. From any thread, while the socket is open.
  static bool has_gone(int socket);
  bool has_gone() const { return has_gone(socket_); }

  // Waits for a request's first byte; false where none comes in time, the server ends, or others
  // need the room.
  bool await_request();
  // These throw HttpRefusal and Gone.
  HttpHead read_head();
  std::string read_body(const HttpHead& head);  // tells a client first that waits to be told
  // The body that was read is no longer there.
  void forget_body();

  // False where the client has gone, or does not take it in time.
  bool write(std::string_view data);
  // Takes no more from here on, and lets the client read what was sent: where something that it
  // sends is left unread, closing would take that away from it.
  void linger();

 private:
  using Time = std::chrono::steady_clock::time_point;

  // Reads what there is, and waits for it until the deadline.
  enum class Fill { some, end, late };
  Fill fill(Time deadline);
  void require_more();
  // A line that may have so many bytes, and takes them off; beyond them it is refused.
  std::string read_line(int64_t* left, const HttpRefusal& too_long);
  // Up to the empty line.
  void read_headers(int64_t left, HttpHead* head);
  void read(int64_t size, std::string* to);

  int socket_;
  const HttpLimits& limits_;
  HttpSeats& seats_;
  HttpSeats::Taken seat_;
  HttpBodies::Share body_;
  std::array<char, 16 << 10> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what was received and not read
  Time deadline_;               // of the newest request
};

}  // namespace attnres
