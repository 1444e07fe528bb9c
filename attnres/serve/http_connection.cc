#include "attnres/serve/http_connection.h"

#include <fmt/core.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "attnres/support/memory.h"

namespace attnres {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kMostHeaders = 100;
constexpr double kLingerSeconds = 2;
constexpr int64_t kLingerBytes = 16 << 20;

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

bool try_again() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// Waits until the socket is ready for `events`; false when it will not be, or the time has come.
bool await(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted = {socket, events, 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::clamp<int64_t>(left + 1, 0, 1000)));
    if (ready > 0) return true;
    if (left <= 0 || (ready < 0 && errno != EINTR)) return false;
  }
}

HttpRefusal too_large_head(const HttpLimits& limits) {
  return {431, "headers_too_large",
          fmt::format("the headers: expected {} bytes and {} headers at most, got more",
                      limits.header_bytes, kMostHeaders)};
}

HttpRefusal too_large_body(const HttpLimits& limits) {
  return {413, "body_too_large",
          fmt::format("the body: expected {} bytes at most, got more", limits.body_bytes)};
}

}  // namespace

bool HttpConnection::has_gone(int socket) {
  pollfd asked = {socket, POLLRDHUP, 0};
  return ::poll(&asked, 1, 0) > 0;
}

bool HttpConnection::await_request() {
  if (!seats_.set(seat_, HttpSeats::Waits::for_request)) return false;
  if (begin_ == end_ && fill(in_seconds(limits_.idle_seconds)) != Fill::some) return false;
  deadline_ = in_seconds(limits_.read_seconds);
  return seats_.set(seat_, HttpSeats::Waits::for_rest_of_request);
}

HttpHead HttpConnection::read_head() {
  int64_t left = limits_.header_bytes;
  const HttpRefusal long_path(414, "path_too_long", "the path is too long");
  std::string line = read_line(&left, long_path);
  if (line.empty()) line = read_line(&left, long_path);  // that old clients send after a body
  HttpHead head = parse_request_line(line);
  read_headers(left, &head);
  frame(&head);
  return head;
}

void HttpConnection::read_headers(int64_t left, HttpHead* head) {
  const HttpRefusal too_large = too_large_head(limits_);
  std::string line;
  for (int headers = 0; !(line = read_line(&left, too_large)).empty(); ++headers) {
    if (headers == kMostHeaders) throw too_large;
    add_header(line, head);
  }
}

std::string HttpConnection::read_body(const HttpHead& head) {
  const HttpRefusal too_large = too_large_body(limits_);
  if (head.content_length > limits_.body_bytes) throw too_large;
  // HTTP/1.0 knows no answer before the answer.
  if (!head.is_old && head.header("expect") == "100-continue")
    write("HTTP/1.1 100 Continue\r\n\r\n");
  std::string body;
  if (!head.is_chunked) {
    read(head.content_length, &body);
    return body;
  }
  int64_t left = limits_.body_bytes;  // what is around the chunks counts
  while (const int64_t size = parse_chunk_size(read_line(&left, too_large))) {
    if (size > left) throw too_large;
    left -= size;
    read(size, &body);
    if (!read_line(&left, too_large).empty()) {
      throw HttpRefusal(400, "bad_request",
                        fmt::format("the body: expected a chunk of {} bytes, got more", size));
    }
  }
  HttpHead trailers;  // which mean nothing here
  read_headers(limits_.header_bytes, &trailers);
  return body;
}

void HttpConnection::forget_body() {
  if (HttpBodies::is_large(body_.give_back())) give_back_freed_memory();
}

HttpConnection::Fill HttpConnection::fill(Time deadline) {
  while (await(socket_, POLLIN, deadline)) {
    if (seats_.gives_way(seat_)) return Fill::end;
    const ssize_t count = ::recv(socket_, buffer_.data(), buffer_.size(), MSG_DONTWAIT);
    if (count < 0 && try_again()) continue;
    begin_ = 0;
    end_ = std::max<ssize_t>(count, 0);
    return count > 0 ? Fill::some : Fill::end;
  }
  return Fill::late;
}

void HttpConnection::require_more() {
  const Fill filled = fill(deadline_);
  if (filled == Fill::some) return;
  if (filled == Fill::late) {
    throw HttpRefusal(
        408, "request_timeout",
        fmt::format("the request: expected within {} s, got a part of it", limits_.read_seconds));
  }
  if (!seats_.gives_way(seat_)) throw Gone();
  throw HttpRefusal(503, "too_many_connections",
                    "the request did not arrive while this server had room for it; try again");
}

std::string HttpConnection::read_line(int64_t* left, const HttpRefusal& too_long) {
  std::string line;
  while (true) {
    if (begin_ == end_) require_more();
    const char* begin = buffer_.data() + begin_;
    const char* end = buffer_.data() + end_;
    const char* stop = std::find(begin, end, '\n');
    const bool whole = stop != end;
    const int64_t bytes = stop - begin + (whole ? 1 : 0);
    if (bytes > *left) throw too_long;
    *left -= bytes;
    begin_ += bytes;
    line.append(begin, bytes);
    if (!whole) continue;
    if (!line.ends_with("\r\n")) {
      throw HttpRefusal(400, "bad_request", "expected lines that end with CR LF, got LF alone");
    }
    line.resize(line.size() - 2);
    return line;
  }
}

void HttpConnection::read(int64_t size, std::string* to) {
  while (size > 0) {
    if (begin_ == end_) require_more();
    const auto bytes = std::min(size, static_cast<int64_t>(end_ - begin_));
    if (!body_.grow_to(static_cast<int64_t>(to->size()) + bytes)) {
      seats_.make_room_for_a_body(seat_);
      throw HttpRefusal(503, "too_many_bodies",
                        fmt::format("this server holds {} bytes of bodies at once, which others "
                                    "have now; try again",
                                    limits_.bodies_bytes));
    }
    to->append(buffer_.data() + begin_, bytes);
    begin_ += bytes;
    size -= bytes;
  }
}

bool HttpConnection::write(std::string_view data) {
  const Clock::time_point deadline = in_seconds(limits_.write_seconds);
  bool waits = false;
  HttpSeats::Waits before = HttpSeats::Waits::for_none;
  while (!data.empty()) {
    const ssize_t count = ::send(socket_, data.data(), data.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count >= 0) {
      data.remove_prefix(count);
      continue;
    }
    if (!try_again()) return false;
    if (!waits) {
      before = seats_.waits(seat_);
      waits = seats_.set(seat_, HttpSeats::Waits::for_client_to_read);
    }
    if (!waits || !await(socket_, POLLOUT, deadline)) return false;
  }
  return !waits || seats_.set(seat_, before);
}

void HttpConnection::linger() {
  const bool may_wait = seats_.set(seat_, HttpSeats::Waits::for_request);
  ::shutdown(socket_, SHUT_WR);
  if (!may_wait) return;
  const Clock::time_point deadline = in_seconds(kLingerSeconds);
  for (int64_t bytes = 0; bytes < kLingerBytes; bytes += static_cast<int64_t>(end_)) {
    if (fill(deadline) != Fill::some) return;
  }
}

}  // namespace attnres
