#include "attnres/serve/http_server.h"

#include <fmt/core.h>
#include <httplib.h>
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>

#include "attnres/support/error.h"

namespace attnres {
namespace {

using Clock = std::chrono::steady_clock;

Clock::time_point in_seconds(double seconds) {
  return Clock::now() +
         std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Waits until the socket is ready for `events`; false when it will not be, or the time has come.
bool await(int socket, short events, Clock::time_point deadline) {
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return false;
    pollfd wanted = {socket, events, 0};
    const int ready = ::poll(&wanted, 1, static_cast<int>(std::min<int64_t>(left + 1, 1000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool has_gone(int socket) {
  char byte;
  const ssize_t read = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (read > 0) return false;
  return read == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// A connection whose requests have to arrive in time, and be of bounded size.
class Connection : public httplib::Stream {
 public:
  Connection(int socket, const HttpLimits& limits) : socket_(socket), limits_(limits) {}

  // Waits for a request's first byte; false where none comes in time or the server stops.
  bool await_request(const std::function<bool()>& stopping) {
    const Clock::time_point deadline = in_seconds(limits_.idle_seconds);
    while (begin_ == end_) {
      constexpr double kLookAround = 0.1;  // for a server that stops
      if (stopping() || Clock::now() >= deadline) return false;
      if (await(socket_, POLLIN, std::min(deadline, in_seconds(kLookAround))) && !fill()) {
        return false;
      }
    }
    deadline_ = in_seconds(limits_.read_seconds);
    bytes_ = 0;
    return true;
  }

  bool is_readable() const override { return begin_ < end_ || await(socket_, POLLIN, deadline_); }
  bool is_writable() const override {
    return !has_gone(socket_) && await(socket_, POLLOUT, in_seconds(limits_.write_seconds));
  }

  ssize_t read(char* to, size_t size) override {
    failed_ = failed_ || bytes_ > limits_.header_bytes + limits_.body_bytes;
    while (!failed_ && begin_ == end_) failed_ = !await(socket_, POLLIN, deadline_) || !fill();
    if (failed_) return -1;
    const size_t count = std::min(size, end_ - begin_);
    std::memcpy(to, buffer_ + begin_, count);
    begin_ += count;
    bytes_ += static_cast<int64_t>(count);
    return static_cast<ssize_t>(count);
  }

  // Whether a request did not come to its end.
  bool failed() const { return failed_; }

  ssize_t write(const char* from, size_t size) override {
    const Clock::time_point deadline = in_seconds(limits_.write_seconds);
    size_t sent = 0;
    while (sent < size) {
      if (!await(socket_, POLLOUT, deadline)) return -1;
      const ssize_t count = ::send(socket_, from + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return -1;
      if (count > 0) sent += count;
    }
    return static_cast<ssize_t>(size);
  }

  void get_remote_ip_and_port(std::string& ip, int& port) const override {
    address(::getpeername, ip, port);
  }
  void get_local_ip_and_port(std::string& ip, int& port) const override {
    address(::getsockname, ip, port);
  }
  socket_t socket() const override { return socket_; }

 private:
  bool fill() {
    const ssize_t count = ::recv(socket_, buffer_, sizeof(buffer_), MSG_DONTWAIT);
    if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return true;
    begin_ = 0;
    end_ = count > 0 ? count : 0;
    return count > 0;
  }

  template <class F>
  void address(const F& of, std::string& ip, int& port) const {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    char host[NI_MAXHOST], service[NI_MAXSERV];
    if (of(socket_, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
        ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), service,
                      sizeof(service), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
      return;
    }
    ip = host;
    port = std::atoi(service);
  }

  int socket_;
  const HttpLimits& limits_;
  char buffer_[16 << 10];
  size_t begin_ = 0, end_ = 0;  // of what was received and not read
  Clock::time_point deadline_;  // of the newest request
  int64_t bytes_ = 0;           // of it that were read
  bool failed_ = false;
};

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// Behind a proxy that takes another of them, the rest would be somebody's next request.
bool has_one_length(const httplib::Request& request) {
  const auto [begin, end] = request.headers.equal_range("Content-Length");
  return std::all_of(begin, end, [&, first = begin](const auto& header) {
    return header.second == first->second;
  });
}

std::string message_of(int status, const HttpLimits& limits) {
  switch (status) {
    case 413:
      return fmt::format("the body is larger than this server takes, {} bytes", limits.body_bytes);
    case 414:
      return "the path is too long";
    case 400:
      return "this is no HTTP request that is understood here";
    default:
      return "the request failed";
  }
}

// The thread's connection, and whether its newest request was one that cannot be followed by
// another.
thread_local int current_socket = -1;
thread_local bool ends_here = false;

}  // namespace

class HttpServer::Implementation : public httplib::Server {
 public:
  Implementation(const HttpLimits& limits, HttpHandler handler, HttpErrorBody error_body)
      : limits_(limits), handler_(std::move(handler)), error_body_(std::move(error_body)) {
    new_task_queue = [this] {
      if (stopped_) stop();  // before it ran; now it does
      return new Threads(*this);
    };
    set_payload_max_length(limits_.body_bytes);
    set_tcp_nodelay(true);
    // Not SO_REUSEPORT, with which two servers could have one port.
    set_socket_options([](socket_t socket) {
      const int yes = 1;
      ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    });
    const auto answer = [this](const httplib::Request& request, httplib::Response& response) {
      reply_to(request, response);
    };
    const char* every = "/.*";
    Get(every, answer).Post(every, answer).Put(every, answer).Patch(every, answer);
    Delete(every, answer).Options(every, answer);
    // Paths are matched by recursion.
    set_pre_routing_handler([this](const httplib::Request& request, httplib::Response& response) {
      if (request.path.size() <= kLongestPath) return httplib::Server::HandlerResponse::Unhandled;
      response.status = 414;
      response.set_content(error_body_(414, message_of(414, limits_)), "application/json");
      return httplib::Server::HandlerResponse::Handled;
    });
    // Of what is no handler's.
    set_error_handler(httplib::Server::Handler(
        [this](const httplib::Request& /*request*/, httplib::Response& response) {
          if (!response.body.empty()) return;
          ends_here = true;
          response.set_header("Connection", "close");
          response.set_content(error_body_(response.status, message_of(response.status, limits_)),
                               "application/json");
        }));
  }

  int64_t connections() const { return connections_; }

  // The library lets five wait until they are taken, and of a burst the rest would try again after
  // seconds.
  void let_many_knock() { ::listen(svr_sock_, SOMAXCONN); }

  void stop_now_or_when_it_runs() {
    stopped_ = true;
    stop();
  }

 private:
  static constexpr size_t kLongestPath = 1024;

  // A thread for each connection, up to the limit; one more is told so, and ends.
  class Threads : public httplib::TaskQueue {
   public:
    explicit Threads(Implementation& server) : server_(server) {}

    void enqueue(std::function<void()> serve) override {
      if (server_.connections_ < server_.limits_.connections && begin(serve)) return;
      refusing_ = true;  // this thread takes connections, and is no connection's
      serve();
      refusing_ = false;
    }

    void shutdown() override {
      std::unique_lock lock(mutex_);
      ended_.wait(lock, [&] { return server_.connections_ == 0; });
    }

   private:
    // False where the system has no room for another thread.
    bool begin(const std::function<void()>& serve) {
      ++server_.connections_;
      try {
        std::thread([this, serve] {
          serve();
          end();
        }).detach();
        return true;
      } catch (const std::exception&) {
        end();
        return false;
      }
    }
    void end() {
      const std::lock_guard lock(mutex_);
      --server_.connections_;
      ended_.notify_all();
    }

    Implementation& server_;
    std::mutex mutex_;
    std::condition_variable ended_;
  };

  bool process_and_close_socket(socket_t socket) override {
    try {
      if (refusing_) {
        refuse(socket);
      } else {
        serve(socket);
      }
    } catch (const std::exception&) {
      // Memory ran out: this connection ends, and no other.
    }
    ::shutdown(socket, SHUT_RDWR);
    ::close(socket);
    return true;
  }

  void refuse(int socket) const {
    const std::string body = error_body_(
        503, fmt::format("this server has no room for another connection, of which it serves "
                         "{} at most; try again later",
                         limits_.connections));
    const std::string reply = fmt::format(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\n"
        "Connection: close\r\nContent-Length: {}\r\n\r\n{}",
        body.size(), body);
    (void)::send(socket, reply.data(), reply.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void serve(int socket) {
    current_socket = socket;
    ends_here = false;
    Connection connection(socket, limits_);
    bool closed = false;
    while (!closed && connection.await_request([this] { return svr_sock_ == INVALID_SOCKET; })) {
      if (!process_request(connection, /*close_connection=*/false, closed, nullptr)) break;
      closed = closed || connection.failed() || ends_here;
    }
  }

  void reply_to(const httplib::Request& request, httplib::Response& response) const {
    const int socket = current_socket;
    HttpRequest asked{.method = request.method,
                      .path = request.path,
                      .body = request.body,
                      .headers = {},
                      .client = request.remote_addr,
                      .gone = [socket] { return has_gone(socket); }};
    size_t header_bytes = 0;
    for (const auto& [name, value] : request.headers) {
      asked.headers.emplace(lower(name), value);
      header_bytes += name.size() + value.size();
    }
    HttpReply reply;
    if (header_bytes > static_cast<size_t>(limits_.header_bytes)) {
      reply = failure(431, fmt::format("the headers are larger than this server takes, {} bytes",
                                       limits_.header_bytes));
    } else if (!has_one_length(request)) {
      ends_here = true;
      reply = failure(400, "Content-Length is given more than once, and not always the same");
    } else {
      try {
        reply = handler_(asked);
      } catch (const std::exception& e) {
        reply = failure(500, e.what());
      }
    }
    response.status = reply.status;
    for (const auto& [name, value] : reply.headers) response.set_header(name, value);
    if (!reply.stream) {
      response.set_content(reply.body, reply.type);
      return;
    }
    response.set_chunked_content_provider(
        reply.type, [stream = std::move(reply.stream)](size_t /*offset*/, httplib::DataSink& sink) {
          bool gone = false;
          stream([&](std::string_view piece) {
            if (!gone) gone = !sink.is_writable() || !sink.write(piece.data(), piece.size());
            return !gone;
          });
          if (!gone) sink.done();
          return !gone;
        });
  }

  HttpReply failure(int status, const std::string& message) const {
    return {.status = status, .body = error_body_(status, message)};
  }

  HttpLimits limits_;
  HttpHandler handler_;
  HttpErrorBody error_body_;
  std::atomic<int64_t> connections_ = 0;
  std::atomic<bool> stopped_ = false;
  static inline thread_local bool refusing_ = false;
};

HttpServer::HttpServer(const HttpLimits& limits, HttpHandler handler, HttpErrorBody error_body)
    : implementation_(
          std::make_unique<Implementation>(limits, std::move(handler), std::move(error_body))) {}

HttpServer::~HttpServer() = default;

int HttpServer::bind(const std::string& host, int port) {
  const bool any = port == 0;
  const int taken = any ? implementation_->bind_to_any_port(host)
                        : (implementation_->bind_to_port(host, port) ? port : -1);
  require(taken > 0,
          "{}:{}: cannot be listened on: the port is in use, needs other rights, or the address is "
          "not one of this machine; choose another with --port or --host",
          host, any ? "any port" : std::to_string(port));
  implementation_->let_many_knock();
  return taken;
}

void HttpServer::run() {
  implementation_->listen_after_bind();
}

void HttpServer::stop() {
  implementation_->stop_now_or_when_it_runs();
}

int64_t HttpServer::connections() const {
  return implementation_->connections();
}

}  // namespace attnres
