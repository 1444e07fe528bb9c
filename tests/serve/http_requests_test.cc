// What is read of requests: wrong ones, too large ones, and bodies in every form.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "tests/serve/running_server.h"

namespace attnres::http_requests_test {
namespace {

using testing::Client;
using testing::echo;
using ::testing::HasSubstr;
using testing::post;
using testing::Running;
using ::testing::StartsWith;

// Otherwise the rest would be the next request of a proxy's connection.
TEST(HttpRequests, RefusesDifferentLengthsOfOneBody) {
  const Running server({}, echo);
  const auto ask = [&](const std::string& another) {
    return server.ask("POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n" +
                      another + "\r\nfirst");
  };
  EXPECT_THAT(ask("Content-Length: 3\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("Content-Length: 5\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask(""), StartsWith("HTTP/1.1 200"));
}

TEST(HttpRequests, RefusesWhatIsWrongOrTooMuch) {
  const Running server({.body_bytes = 1000, .header_bytes = 500}, echo);
  EXPECT_THAT(server.ask("nonsense\r\n\r\n"), HasSubstr("400"));
  EXPECT_THAT(server.ask(post("/", std::string(1001, 'a'))), HasSubstr("HTTP/1.1 413"));
  EXPECT_THAT(server.ask(post("/", std::string(1001, 'a'))), HasSubstr("1000 bytes"));
  EXPECT_THAT(server.ask(post("/" + std::string(1100, 'a'), "")), HasSubstr("HTTP/1.1 414"));
  EXPECT_THAT(
      server.ask(post("/", "", "X: " + std::string(600, 'a') + "\r\nConnection: close\r\n")),
      HasSubstr("HTTP/1.1 431"));
  EXPECT_THAT(server.ask(post("/throws", "")), HasSubstr("it went wrong"));
  EXPECT_THAT(server.ask(post("/", "fine")), HasSubstr("POST / fine"));
}

// A line of the head may be as long as the head.
TEST(HttpRequests, SaysThatHeadersAreTooLarge) {
  const Running server({}, echo);
  const auto ask = [&](size_t bytes) {
    return server.ask("GET /x HTTP/1.1\r\nHost: a\r\nX: " + std::string(bytes, 'a') +
                      "\r\nConnection: close\r\n\r\n");
  };
  EXPECT_THAT(ask(30'000), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask(33'000), StartsWith("HTTP/1.1 431"));
  EXPECT_EQ(server.refused(), 1);
  std::string many = "GET /x HTTP/1.1\r\nHost: a\r\n";
  for (int i = 0; i < 101; ++i) many += "a:\r\n";
  EXPECT_THAT(server.ask(many + "\r\n"), StartsWith("HTTP/1.1 431"));
}

// What a proxy before the server may take for something else.
TEST(HttpRequests, ReadsRequestsStrictly) {
  const Running server({}, echo);
  const std::string body = "Content-Length: 4\r\n\r\nbody";
  for (const std::string& request : std::vector<std::string>{
           "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n" + body,
           "POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: -4\r\n\r\nbody",
           "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +4\r\n\r\nbody",
           "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\nbody",
           "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999999999999\r\n\r\nbody",
           "POST /a HTTP/1.1\r\nHost: a\r\nX : a\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\n X: a\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\nX: a\r\n folded\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\nX\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\nX: a\x01\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\nX: a\rY: b\r\n" + body,
           "POST /a HTTP/1.1\nX: a\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n" + body,
           "POST /a HTTP/1.1\r\n" + body,  // no host
           "POST /a HTTP/1.1\r\nHost:\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a/b\r\n" + body,
           "POST http:///a HTTP/1.1\r\nHost: a\r\n" + body,
           "POST http://b@a/a HTTP/1.1\r\nHost: a\r\n" + body,
           "POST ftp://a/a HTTP/1.1\r\nHost: a\r\n" + body,
           "POST /a HTTP/2.0\r\n" + body,
           "POST  /a HTTP/1.1\r\nHost: a\r\n" + body,
           "POST /a b HTTP/1.1\r\nHost: a\r\n" + body,
           "POST a HTTP/1.1\r\nHost: a\r\n" + body,
           "POST /%4 HTTP/1.1\r\nHost: a\r\n" + body,
           "PO(ST /a HTTP/1.1\r\nHost: a\r\n" + body,
           "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\na\r\n0\r\n\r\n",
           "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\na\r\n0\r\n\r\n",
           "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
       }) {
    const std::string answer = server.ask(request);
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 400")) << request;
    EXPECT_THAT(answer, HasSubstr("Connection: close")) << request;
  }
  const std::string chunks = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string rest :
       {" 1\r\na\r\n0\r\n\r\n", "\t1\r\na\r\n0\r\n\r\n", " \r\n0\r\n\r\n",
        "1;x\ry\r\na\r\n0\r\n\r\n", "0\r\nGET /x HTTP/1.1\r\n\r\n", "0\r\nX: a\rb\r\n\r\n"}) {
    EXPECT_THAT(server.ask(chunks + rest), StartsWith("HTTP/1.1 400")) << rest;
  }
  for (const char wrong : {'\0', '\1', '\t', '\x7F', '\x80', '\xFF'}) {
    const std::string target = std::string("/a?") + wrong + "b";
    EXPECT_THAT(server.ask("GET " + target + " HTTP/1.1\r\nHost: a\r\n\r\n"),
                StartsWith("HTTP/1.1 400"))
        << int{wrong};
  }
  EXPECT_THAT(server.ask("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n"),
              StartsWith("HTTP/1.1 501"));
  EXPECT_THAT(server.ask("POST /%61?b=/ HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n" + body),
              HasSubstr("POST /a body"));
}

TEST(HttpRequests, TakesAWholeAddress) {
  const Running server({}, [](const HttpRequest& request) {
    return HttpReply{.body = request.path + " of " + request.header("host")};
  });
  const std::string rest = " HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(server.ask("GET HTTP://a:80/x?y=http://b/" + rest), HasSubstr("/x of a:80"));
  EXPECT_THAT(server.ask("GET http://a?y" + rest), HasSubstr("/ of a"));
  EXPECT_THAT(server.ask("GET /x?y=http://b/" + rest), HasSubstr("/x of other"));
}

TEST(HttpRequests, ReadsChunksAndTheirTrailers) {
  const Running server({.body_bytes = 100}, echo);
  const std::string begin = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n";
  Client client(server.port);
  for (const std::string trailers : {"", "Digest: abc\r\nX: y\r\n"}) {
    client.send(fmt::format(
        "{}3\r\none\r\n7;name=\"value\"\r\n and tw\r\n00001\r\no\r\n0\r\n{}\r\n", begin, trailers));
    EXPECT_THAT(client.read_to("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(client.read_to("two"), "POST /a one and two");
  }
  EXPECT_THAT(server.ask(begin + "65\r\n"), StartsWith("HTTP/1.1 413"));
  // What is around them counts.
  std::string small = begin;
  for (int i = 0; i < 40; ++i) small += "1\r\na\r\n";
  EXPECT_THAT(server.ask(small), StartsWith("HTTP/1.1 413"));
}

// It would be the next request of somebody's connection.
TEST(HttpRequests, TakesNoBodyForARequest) {
  const Running server({}, echo);
  const std::string hidden = "GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n";
  const std::string answer =
      server.ask("GET /x HTTP/1.1\r\nHost: a\r\nContent-Length: " + std::to_string(hidden.size()) +
                 "\r\n\r\n" + hidden);
  EXPECT_THAT(answer, HasSubstr("GET /x"));
  EXPECT_THAT(answer, Not(HasSubstr("hidden")));
  EXPECT_THAT(server.ask("POST /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
              HasSubstr("POST /none "));
}

// A few hundred bytes of brotli are as much as one likes when they are unpacked.
TEST(HttpRequests, RefusesPackedBodiesUnread) {
  const Running server({}, echo);
  for (const std::string packed : {"gzip", "br", "deflate", "gzip, gzip"}) {
    Client client(server.port);
    client.send("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\nContent-Encoding: " +
                packed + "\r\n\r\n");
    EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 415")) << packed;  // without the body
  }
  EXPECT_THAT(
      server.ask(post("/a", "plain", "Content-Encoding: identity\r\nConnection: close\r\n")),
      HasSubstr("POST /a plain"));
}

// Who may not ask costs a head: no byte of the body is waited for.
TEST(HttpRequests, AsksWhoMayBeforeItReadsABody) {
  const Running server({}, echo, [](const HttpRequest& head) -> std::optional<HttpReply> {
    if (head.header("authorization") == "Bearer key") return std::nullopt;
    return HttpReply{.status = 401, .body = "who are you?"};
  });
  Client client(server.port);
  client.send(
      "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 8000000\r\nContent-Encoding: br\r\n\r\n");
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(answer, HasSubstr("who are you?"));
  EXPECT_FALSE(client.was_reset());
  EXPECT_THAT(server.ask(post("/a", "body", "Authorization: Bearer key\r\nConnection: close\r\n")),
              HasSubstr("POST /a body"));
}

// Clients that send a large body wait for this, and see a refusal before they send it.
TEST(HttpRequests, TellsAClientThatItsBodyIsWanted) {
  const Running server({.body_bytes = 10}, echo);
  const auto head = [](int bytes) {
    return "POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nConnection: "
           "close\r\nContent-Length: " +
           std::to_string(bytes) + "\r\n\r\n";
  };
  Client client(server.port);
  client.send(head(4));
  EXPECT_EQ(client.read_to("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  client.send("body");
  EXPECT_THAT(client.read_all(), HasSubstr("POST /a body"));
  EXPECT_THAT(server.ask(head(11)), StartsWith("HTTP/1.1 413"));
  Client other(server.port);
  other.send("POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-Continue\r\nContent-Length: 4\r\n\r\n");
  EXPECT_EQ(other.read_to("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
}

// Each is refused when it has had the room that it may have, and not read any further.
TEST(HttpRequests, BoundsWhatHasNoEnd) {
  const Running server({.body_bytes = 10'000, .header_bytes = 10'000}, echo);
  const std::string endless(20'000, 'a'),
      chunked = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_THAT(server.ask("GET /" + endless), StartsWith("HTTP/1.1 414"));
  EXPECT_THAT(server.ask("GET / HTTP/1.1\r\nX: " + endless), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(server.ask(chunked + "1;" + endless), StartsWith("HTTP/1.1 413"));
  EXPECT_THAT(server.ask(chunked + "0\r\nX: " + endless), StartsWith("HTTP/1.1 431"));
  EXPECT_THAT(server.ask(chunked + "7FFFFFFFFFFFFFFF\r\n"), StartsWith("HTTP/1.1 413"));
  for (const char* beyond : {"8000000000000000", "FFFFFFFFFFFFFFFF", "10000000000000001"}) {
    EXPECT_THAT(server.ask(chunked + beyond + "\r\n"), StartsWith("HTTP/1.1 400")) << beyond;
  }
  EXPECT_THAT(server.ask(chunked + "1\r\na\r\n0\r\nX: a\r\nConnection: close\r\n\r\n" +
                         "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
              HasSubstr("POST /a a"));
}

TEST(HttpRequests, HeadersHoldNoZeros) {
  const Running server({}, echo);
  using std::string_literals::operator""s;
  for (const std::string& header : {"X: a\0b"s, "X\0: a"s, "Host: a\0"s, "\0"s}) {
    EXPECT_THAT(server.ask("GET / HTTP/1.1\r\nHost: a\r\n" + header + "\r\n\r\n"),
                StartsWith("HTTP/1.1 400"));
  }
}

// A connection has one request answered at a time, however many it sends.
TEST(HttpRequests, ThoseOfAConnectionTakeTurns) {
  constexpr int kMany = 500;
  std::atomic<int> now = 0, most = 0, all = 0;
  {
    const Running server({}, [&](const HttpRequest& request) {
      most = std::max<int>(most, ++now);
      ++all;
      --now;
      return echo(request);
    });
    std::string flood;
    for (int i = 1; i < kMany; ++i) flood += "GET /x HTTP/1.1\r\nHost: a\r\n\r\n";
    server.ask(flood + "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  }
  EXPECT_EQ(all, kMany);
  EXPECT_EQ(most, 1);
}

// Who speaks HTTP/1.0 knows no answer before the answer.
TEST(HttpRequests, TellsNoOldClientThatItsBodyIsWanted) {
  const Running server({}, echo);
  EXPECT_THAT(server.ask("POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n"
                         "body"),
              StartsWith("HTTP/1.1 200"));
}

}  // namespace
}  // namespace attnres::http_requests_test
