// A client of a server on this machine.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

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

  void send(const std::string& text) { ::send(socket_, text.data(), text.size(), MSG_NOSIGNAL); }
  // Up to and with `end`, or to the connection's.
  std::string read_to(const std::string& end) {
    std::string text;
    char byte;
    while (!text.ends_with(end) && ::recv(socket_, &byte, 1, 0) == 1) text += byte;
    return text;
  }
  std::string read_all() { return read_to("\n\n\n no such end"); }

 private:
  int socket_;
};

inline std::string post(const std::string& path, const std::string& body,
                        const std::string& headers = "Connection: close\r\n") {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace attnres::testing
