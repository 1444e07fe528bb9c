// A client of a server on this machine.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <string>

namespace attnres::testing {

class Client {
 public:
  explicit Client(int port) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(); }
  void close() {
    if (socket_ >= 0) ::close(socket_);
    socket_ = -1;
  }

  void send(const std::string& text) {
    was_reset_ = ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL) < 0 || was_reset_;
  }
  void send_no_more() { ::shutdown(socket_, SHUT_WR); }
  // Up to and with `end`, or to the connection's.
  std::string read_to(const std::string& end) {
    std::string text;
    char byte;
    ssize_t count = 1;
    while (!text.ends_with(end) && (count = ::recv(socket_, &byte, 1, 0)) == 1) text += byte;
    was_reset_ = was_reset_ || count < 0;
    return text;
  }
  // Whether the connection was cut, where it should have ended.
  bool was_reset() const { return was_reset_; }
  std::string read_all() { return read_to("\n\n\n no such end"); }

 private:
  int socket_;
  bool was_reset_ = false;
};

inline std::string post(const std::string& path, const std::string& body,
                        const std::string& headers = "Connection: close\r\n") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace attnres::testing
