// HTTP/1.1 on a socket, and nothing of what is served. Each connection has a thread while it lasts;
// where there are as many as may be, those that wait for a request give way to new ones, then those
// that take long to send one or to read an answer.
//
// What costs is done for those who may ask: of a request, `admit` sees the head before a byte of
// the body is read. Bodies are taken as they are sent, never unpacked; parts of answers (Range) are
// not given.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "attnres/serve/settings.h"

namespace attnres {

struct HttpRequest {
  std::string method = {}, path = {};  // the path without what follows a question mark
  std::string body = {};
  std::map<std::string, std::string> headers = {};  // by their names in lower case
  std::string client = {};                          // its address
  // Whether the client has closed the connection, or its half of it; from any thread.
  std::function<bool()> gone = {};

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

// Sends a piece at once. False once the client has gone.
using Send = std::function<bool(std::string_view)>;

struct HttpReply {
  int status = 200;
  std::string type = "application/json";
  std::string body = {};
  std::map<std::string, std::string> headers = {};
  // In place of a body: called once, after status and headers were sent.
  std::function<void(const Send&)> stream = {};
};

// Called from many threads at once. What they throw becomes a reply of status 500.
struct HttpHandlers {
  // Sees a request without its body: gives a reply where it may not ask.
  std::function<std::optional<HttpReply>(const HttpRequest&)> admit = {};
  std::function<HttpReply(HttpRequest)> answer = {};
  // To a request that was not read to its end, so that parts or all of it are empty; the code is a
  // word for programs.
  std::function<HttpReply(const HttpRequest&, int status, const std::string& code,
                          const std::string& message)>
      refuse = {};
};

class HttpServer {
 public:
  HttpServer(const HttpLimits& limits, HttpHandlers handlers);
  ~HttpServer();

  // Takes the address; port 0 is any free one. Returns the port. Throws Error where it is in use
  // or not this machine's.
  int bind(const std::string& host, int port);
  // Serves until `stop`, then until the requests that were begun are answered.
  void run();
  // No more connections and requests are taken. From any thread, or before `run`.
  void stop();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace attnres
