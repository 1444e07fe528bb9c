#include "attnres/serve/http_listener.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include "attnres/support/error.h"

namespace attnres {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLinger(2);
constexpr int kLookAgain = 50;  // milliseconds, where the system has no room for a socket

struct FreeAddresses {
  void operator()(addrinfo* addresses) const { ::freeaddrinfo(addresses); }
};

// Listens on the address; -1 where that cannot be, and errno says why.
int listen_on(const addrinfo& address) {
  const int socket = ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK,
                              address.ai_protocol);
  if (socket < 0) return -1;
  // Not SO_REUSEPORT, with which two servers could have one port.
  const int yes = 1;
  ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  if (::bind(socket, address.ai_addr, address.ai_addrlen) == 0 &&
      ::listen(socket, SOMAXCONN) == 0) {
    return socket;
  }
  const int why = errno;
  ::close(socket);
  errno = why;
  return -1;
}

// Why an address cannot be listened on, and what to do about it.
std::string why_not(int error) {
  switch (error) {
    case EADDRINUSE:
      return "another program listens on this port; choose another with --port, or 0 for any that "
             "is free";
    case EACCES:
      return "this user may not: ports below 1024 need other rights; choose one above with --port";
    case EADDRNOTAVAIL:
      return "the address is not one of this machine; choose another with --host";
    default:
      return std::strerror(error);
  }
}

int port_of(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  if (::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0) return -1;
  return ntohs(address.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

// Whether nothing more comes of the socket; what is there is thrown away, a piece at a time.
bool is_drained(int socket) {
  std::array<char, 64 << 10> piece;
  const ssize_t count = ::recv(socket, piece.data(), piece.size(), MSG_DONTWAIT);
  return count == 0 || (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

}  // namespace

std::string client_address(int socket) {
  sockaddr_storage address = {};
  socklen_t size = sizeof(address);
  char host[NI_MAXHOST];
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) != 0 ||
      ::getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), nullptr, 0,
                    NI_NUMERICHOST) != 0) {
    return "";
  }
  return host;
}

HttpListener::HttpListener() {
  require(::pipe2(wake_, O_CLOEXEC | O_NONBLOCK) == 0, "the system has no room for a pipe");
}

HttpListener::~HttpListener() {
  while (!sent_away_.empty()) forget_first();
  close_listening();
  for (const int end : wake_) ::close(end);
}

void HttpListener::close_listening() {
  if (listening_ >= 0) ::close(listening_);
  listening_ = -1;
}

int HttpListener::bind(const std::string& host, int port) {
  addrinfo wanted = {};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  const int unknown = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found);
  require(unknown == 0, "--host {}: is no address that this machine knows: {}", host,
          ::gai_strerror(unknown));
  const std::unique_ptr<addrinfo, FreeAddresses> addresses(found);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    listening_ = listen_on(*address);
    if (listening_ >= 0) return port_of(listening_);
  }
  fail("{}:{}: cannot be listened on: {}", host, port, why_not(errno));
}

int HttpListener::accept() {
  while (true) {
    // Of a fixed size: where memory is short, it goes on.
    std::array<pollfd, 2 + kMostSentAway> wanted;
    wanted[0] = {wake_[0], POLLIN, 0};
    wanted[1] = {listening_, POLLIN, 0};
    size_t count = 2;
    for (const SentAway& client : sent_away_) wanted[count++] = {client.socket, POLLIN, 0};
    ::poll(wanted.data(), count, sent_away_.empty() ? -1 : 100);
    if (wanted[0].revents != 0) {
      close_listening();  // who knocks from here on is told at once that nobody is there
      return -1;
    }
    const auto now = Clock::now();
    auto client = sent_away_.begin();
    for (size_t i = 2; i < count; ++i) {
      const bool over = now >= client->deadline;
      if (!over && (wanted[i].revents == 0 || !is_drained(client->socket))) {
        ++client;
        continue;
      }
      ::close(client->socket);
      client = sent_away_.erase(client);
    }
    if (wanted[1].revents == 0) continue;
    const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) {
      const int yes = 1;
      ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
      return socket;
    }
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS) continue;
    if (!sent_away_.empty()) forget_first();
    pollfd wake = {wake_[0], POLLIN, 0};
    ::poll(&wake, 1, kLookAgain);  // it would be tried again and again at once
    return kNoRoom;
  }
}

void HttpListener::stop() {
  const char byte = 0;
  (void)!::write(wake_[1], &byte, 1);
}

void HttpListener::send_away(int socket, std::string_view answer) {
  (void)::send(socket, answer.data(), answer.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(socket, SHUT_WR);
  if (sent_away_.size() == kMostSentAway) forget_first();
  sent_away_.push_back({socket, Clock::now() + kLinger});
}

void HttpListener::forget_first() {
  ::close(sent_away_.front().socket);
  sent_away_.pop_front();
}

}  // namespace attnres
