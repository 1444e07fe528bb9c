// A socket that is listened on, and the clients that are sent away from it.
#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <string>
#include <string_view>

namespace attnres {

// The numeric address of a socket's other side, and nothing where it has none.
std::string client_address(int socket);

class HttpListener {
 public:
  HttpListener();
  HttpListener(const HttpListener&) = delete;
  HttpListener& operator=(const HttpListener&) = delete;
  ~HttpListener();

  // Returns the port, of which 0 is any free one. Throws Error, saying why, where it cannot be
  // listened on.
  int bind(const std::string& host, int port);

  // Waits for a client; its socket, -1 after `stop`, and kNoRoom where the system has none for
  // another socket.
  static constexpr int kNoRoom = -2;
  int accept();
  // From any thread.
  void stop();

  // Answers a client that is not served, and closes its socket once it has read that.
  void send_away(int socket, std::string_view answer);

 private:
  static constexpr size_t kMostSentAway = 256;
  struct SentAway {
    int socket;
    std::chrono::steady_clock::time_point deadline;
  };

  void forget_first();
  void close_listening();

  int listening_ = -1;
  int wake_[2] = {-1, -1};  // a pipe
  std::list<SentAway> sent_away_;
};

}  // namespace attnres
