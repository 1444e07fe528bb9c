// A server on a socket, for as long as a test takes.
#pragma once

#include <atomic>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "attnres/serve/api_error.h"
#include "attnres/serve/http_server.h"
#include "tests/serve/http_client.h"

namespace attnres::testing {

class Running {
 public:
  explicit Running(const HttpLimits& limits, std::function<HttpReply(const HttpRequest&)> answer,
                   std::function<std::optional<HttpReply>(const HttpRequest&)> admit = {})
      : server_(
            limits,
            {.admit = std::move(admit),
             .answer = std::move(answer),
             .refuse =
                 [this](const HttpRequest& /*request*/, int status, const std::string& code,
                        const std::string& message) {
                   ++refused_;
                   return HttpReply{.status = status, .body = error_body({status, code, message})};
                 }}),
        port(server_.bind("127.0.0.1", 0)),
        thread_([this] { server_.run(); }) {}
  ~Running() {
    server_.stop();
    thread_.join();
  }

  // How many requests nobody saw but who refused them.
  int refused() const { return refused_; }

  std::string ask(const std::string& request) const {
    Client client(port);
    client.send(request);
    return client.read_all();
  }

 private:
  std::atomic<int> refused_ = 0;
  HttpServer server_;

 public:
  const int port;

 private:
  std::thread thread_;
};

inline HttpReply echo(const HttpRequest& request) {
  if (request.path == "/throws") throw std::runtime_error("it went wrong");
  return {.type = "text/plain", .body = request.method + " " + request.path + " " + request.body};
}

}  // namespace attnres::testing
