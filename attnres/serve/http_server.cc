#include "attnres/serve/http_server.h"

#include <fmt/chrono.h>
#include <fmt/core.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <ctime>
#include <exception>
#include <thread>
#include <utility>

#include "attnres/serve/http_bodies.h"
#include "attnres/serve/http_connection.h"
#include "attnres/serve/http_listener.h"
#include "attnres/serve/http_seats.h"
#include "attnres/support/error.h"
#include "attnres/support/format.h"

namespace attnres {
namespace {

// A body says what it is for in these alone; other requests have none that would be read.
bool takes_body(const HttpRequest& request) {
  return request.method == "POST" || request.method == "PUT" || request.method == "PATCH";
}

// Before a body is read.
void check_body(const HttpHead& head) {
  const std::string packed = head.header("content-encoding"), expects = head.header("expect");
  if (!packed.empty() && packed != "identity") {
    throw HttpRefusal(415, "unsupported_content_encoding",
                      fmt::format("the body: expected it as it is, without a content encoding, got "
                                  "{}; send it without",
                                  one_line(packed)));
  }
  if (!expects.empty() && expects != "100-continue") {
    throw HttpRefusal(
        417, "unsupported_expectation",
        fmt::format("the header expect: expected 100-continue, got {}", one_line(expects)));
  }
}

std::string head_of(const HttpReply& reply, bool is_chunked, bool is_last) {
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, status_text(reply.status));
  head += fmt::format("Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(std::time(nullptr)));
  for (const auto& [name, value] : reply.headers) head += fmt::format("{}: {}\r\n", name, value);
  if (reply.status != 204) head += fmt::format("Content-Type: {}\r\n", reply.type);
  if (is_chunked) head += "Transfer-Encoding: chunked\r\n";
  if (!reply.stream && reply.status != 204) {
    head += fmt::format("Content-Length: {}\r\n", reply.body.size());
  }
  if (is_last) head += "Connection: close\r\n";
  return head + "\r\n";
}

}  // namespace

class HttpServer::Implementation {
 public:
  Implementation(const HttpLimits& limits, HttpHandlers handlers)
      : limits_(limits),
        handlers_(std::move(handlers)),
        seats_(limits.connections, limits.grace_seconds),
        bodies_(std::max(limits.bodies_bytes, limits.body_bytes)) {}

  int bind(const std::string& host, int port) { return listener_.bind(host, port); }

  void run() {
    std::exception_ptr failure;
    try {
      take_all();
    } catch (...) {
      failure = std::current_exception();
    }
    // Connections' threads use what is served.
    seats_.end();
    seats_.wait_for_all();
    if (failure) std::rethrow_exception(failure);
  }

  void stop() { listener_.stop(); }

 private:
  void take_all() {
    int socket;
    while ((socket = listener_.accept()) != -1) {
      if (socket == HttpListener::kNoRoom) {
        seats_.make_room();
      } else {
        take(socket);
      }
    }
  }

  // A thread for a connection; one that has no room is told so.
  void take(int socket) {
    HttpSeats::Taken seat;
    bool seated = false;
    try {
      seated = seats_.take(socket, &seat);
      if (seated) {
        std::thread([this, socket, seat] { serve_and_close(socket, seat); }).detach();
        return;
      }
    } catch (const std::exception&) {
      // The system has no room for another thread.
    }
    if (seated) seats_.leave(seat);
    send_away(socket);
  }

  void send_away(int socket) {
    try {
      HttpRequest request{.client = client_address(socket)};
      HttpReply reply = handlers_.refuse(
          request, 503, "too_many_connections",
          fmt::format("this server has no room for another connection, of which it serves {} at "
                      "most; try again later",
                      limits_.connections));
      reply.headers["Retry-After"] = "1";
      listener_.send_away(socket, head_of(reply, false, /*is_last=*/true) + reply.body);
    } catch (const std::exception&) {
      ::close(socket);
    }
  }

  void serve_and_close(int socket, HttpSeats::Taken seat) {
    try {
      HttpConnection connection(socket, limits_, seats_, seat, bodies_);
      serve(connection, socket, seat);
    } catch (const std::exception&) {
      // Memory ran out: this connection ends, and no other.
    } catch (const HttpConnection::Gone&) {
    }
    seats_.leave(seat);
    ::close(socket);
  }

  void serve(HttpConnection& connection, int socket, HttpSeats::Taken seat) {
    const std::string client = client_address(socket);
    while (connection.await_request()) {
      HttpRequest request{.client = client,
                          .gone = [socket] { return HttpConnection::has_gone(socket); }};
      try {
        if (!exchange(connection, seat, request)) return;
      } catch (const HttpRefusal& e) {
        connection.forget_body();
        send(connection, handlers_.refuse(request, e.status, e.code, e.what()), {.is_last = true});
        connection.linger();
        return;
      }
    }
  }

  // A request and its answer; whether another may follow on the connection.
  bool exchange(HttpConnection& connection, HttpSeats::Taken seat, HttpRequest& request) {
    HttpHead head = connection.read_head();
    request.method = head.method;
    request.path = head.path;
    request.headers = head.headers;
    std::optional<HttpReply> reply = refused(request);
    bool is_read = !head.has_body();
    if (!reply && !is_read && takes_body(request)) {
      check_body(head);
      request.body = connection.read_body(head);
      is_read = true;
    }
    if (!seats_.set(seat, HttpSeats::Waits::for_none)) {
      throw HttpRefusal(503, "too_many_connections", "others needed the room; try again");
    }
    const bool is_head = request.method == "HEAD";
    if (!reply) reply = answer(std::move(request));
    connection.forget_body();
    head.is_last = head.is_last || !is_read;
    if (!send(connection, *reply, head, is_head)) return false;
    if (head.is_last) connection.linger();
    return !head.is_last;
  }

  std::optional<HttpReply> refused(const HttpRequest& request) const {
    if (!handlers_.admit) return std::nullopt;
    try {
      return handlers_.admit(request);
    } catch (const std::exception& e) {
      return handlers_.refuse(request, 500, "internal_error", e.what());
    }
  }

  HttpReply answer(HttpRequest request) const {
    const HttpRequest head{
        .method = request.method, .path = request.path, .client = request.client};
    try {
      return handlers_.answer(std::move(request));
    } catch (const std::exception& e) {
      return handlers_.refuse(head, 500, "internal_error", e.what());
    }
  }

  // False where the client has gone.
  static bool send(HttpConnection& connection, const HttpReply& reply, const HttpHead& head,
                   bool is_head = false) {
    const bool is_chunked = reply.stream && !head.is_old;
    const std::string begin = head_of(reply, is_chunked, head.is_last);
    if (!reply.stream || is_head) return connection.write(is_head ? begin : begin + reply.body);
    bool there = connection.write(begin);
    reply.stream([&](std::string_view piece) {
      if (piece.empty()) return there;  // which would be the end
      there = there && !connection.has_gone() &&
              connection.write(is_chunked ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece)
                                          : std::string(piece));
      return there;
    });
    return there && (!is_chunked || connection.write("0\r\n\r\n"));
  }

  const HttpLimits limits_;
  const HttpHandlers handlers_;
  HttpSeats seats_;
  HttpBodies bodies_;
  HttpListener listener_;
};

HttpServer::HttpServer(const HttpLimits& limits, HttpHandlers handlers)
    : implementation_(std::make_unique<Implementation>(limits, std::move(handlers))) {}

HttpServer::~HttpServer() = default;

int HttpServer::bind(const std::string& host, int port) {
  return implementation_->bind(host, port);
}

void HttpServer::run() {
  implementation_->run();
}

void HttpServer::stop() {
  implementation_->stop();
}

}  // namespace attnres
