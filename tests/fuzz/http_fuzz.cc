// The bytes of a connection, request after request.
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/serve/http_bodies.h"
#include "attnres/serve/http_connection.h"
#include "attnres/serve/http_head.h"
#include "attnres/serve/http_seats.h"
#include "attnres/support/file.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::http_fuzz {
namespace {

using namespace testing;

constexpr HttpLimits kLimits = {.body_bytes = 1 << 16, .header_bytes = 1 << 12, .read_seconds = 5};
// Fits into a socket's buffer, so that one thread may write and then read.
constexpr size_t kMostBytes = size_t{1} << 16;

void read_requests(HttpConnection& connection) {
  while (connection.await_request()) {
    const HttpHead head = connection.read_head();
    if (head.has_body()) connection.read_body(head);
    if (head.is_last) return;
  }
}

void run(std::string_view input) {
  std::array<int, 2> sockets = {};
  require(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0, "no sockets");
  const auto [client, server] = sockets;
  input = input.substr(0, kMostBytes);
  write_all(client, input.data(), input.size());
  ::shutdown(client, SHUT_WR);
  HttpSeats seats(1, 0);
  HttpSeats::Taken seat;
  seats.take(server, &seat);
  try {
    HttpBodies bodies(kLimits.bodies_bytes);
    HttpConnection connection(server, kLimits, seats, seat, bodies);
    read_requests(connection);
  } catch (const HttpRefusal&) {
  } catch (const HttpConnection::Gone&) {
  }
  seats.leave(seat);
  ::close(client);
  ::close(server);
}

std::vector<std::string> seeds() {
  return {
      "GET /v1/models HTTP/1.1\r\nHost: localhost:8080\r\nAccept: */*\r\n\r\n"
      "GET /health?a=b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
      "POST http://a.b/v1/completions HTTP/1.1\r\nHost: a.b\r\nContent-Length: 2\r\n"
      "Expect: 100-continue\r\n\r\n{}",
      "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
      "2;x=y\r\n{}\r\n0\r\nTrailer: 1\r\n\r\n",
      "GET / HTTP/1.0\r\n\r\n"};
}

const ListedFuzzTarget kListed({"http", run, seeds});

}  // namespace
}  // namespace attnres::http_fuzz
