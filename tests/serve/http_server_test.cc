// The server on a socket: what clients send that is wrong, too much or too slow, and the program.
#include "attnres/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "attnres/serve/api_error.h"
#include "attnres/serve/http_connection.h"
#include "attnres/serve/http_seats.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/serve/http_client.h"
#include "tests/serve/served.h"
#include "tests/text/test_files.h"

namespace attnres::http_server_test {
namespace {

using testing::Client;
using ::testing::HasSubstr;
using testing::post;
using ::testing::StartsWith;

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

HttpReply echo(const HttpRequest& request) {
  if (request.path == "/throws") throw std::runtime_error("it went wrong");
  return {.type = "text/plain", .body = request.method + " " + request.path + " " + request.body};
}

// Otherwise the rest would be the next request of a proxy's connection.
TEST(HttpServer, RefusesDifferentLengthsOfOneBody) {
  const Running server({}, echo);
  const auto ask = [&](const std::string& another) {
    return server.ask("POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n" +
                      another + "\r\nfirst");
  };
  EXPECT_THAT(ask("Content-Length: 3\r\n"), StartsWith("HTTP/1.1 400"));
  EXPECT_THAT(ask("Content-Length: 5\r\n"), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(ask(""), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, AnswersOneRequestAfterAnother) {
  const Running server({}, echo);
  Client client(server.port);
  for (const std::string body : {"first", "second"}) {
    client.send(post("/a/b", body, ""));
    EXPECT_THAT(client.read_to("\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    const std::string expected = "POST /a/b " + body;
    EXPECT_EQ(client.read_to(expected), expected);
  }
  EXPECT_THAT(server.ask("GET /x?y=1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
              HasSubstr("GET /x "));
}

TEST(HttpServer, RefusesWhatIsWrongOrTooMuch) {
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
TEST(HttpServer, SaysThatHeadersAreTooLarge) {
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
TEST(HttpServer, ReadsRequestsStrictly) {
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

TEST(HttpServer, TakesAWholeAddress) {
  const Running server({}, [](const HttpRequest& request) {
    return HttpReply{.body = request.path + " of " + request.header("host")};
  });
  const std::string rest = " HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n";
  EXPECT_THAT(server.ask("GET HTTP://a:80/x?y=http://b/" + rest), HasSubstr("/x of a:80"));
  EXPECT_THAT(server.ask("GET http://a?y" + rest), HasSubstr("/ of a"));
  EXPECT_THAT(server.ask("GET /x?y=http://b/" + rest), HasSubstr("/x of other"));
}

TEST(HttpServer, SaysWhenItAnswers) {
  const Running server({}, echo);
  EXPECT_THAT(server.ask(post("/", "")),
              ::testing::ContainsRegex("Date: [A-Z][a-z][a-z], [0-9][0-9] [A-Z][a-z][a-z] "
                                       "[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT\r\n"));
}

TEST(HttpServer, ReadsChunksAndTheirTrailers) {
  const Running server({.body_bytes = 100}, echo);
  const std::string begin = "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n";
  Client client(server.port);
  for (const std::string trailers : {"", "Digest: abc\r\nX: y\r\n"}) {
    client.send(begin + "3\r\none\r\n7;name=\"value\"\r\n and tw\r\n00001\r\no\r\n0\r\n" +
                trailers + "\r\n");
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
TEST(HttpServer, TakesNoBodyForARequest) {
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
TEST(HttpServer, RefusesPackedBodiesUnread) {
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
TEST(HttpServer, AsksWhoMayBeforeItReadsABody) {
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
TEST(HttpServer, TellsAClientThatItsBodyIsWanted) {
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

// Where the client was slow to take that, its connection still waits for its body.
TEST(HttpConnection, GivesWayAfterAContinueThatHadToWait) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  HttpSeats seats(1, 0);
  HttpSeats::Taken seat, another;
  ASSERT_TRUE(seats.take(sockets[0], &seat));
  const HttpLimits limits = {.read_seconds = 1000, .write_seconds = 1000};
  HttpConnection connection(sockets[0], limits, seats, seat);
  const std::string request =
      "POST /a HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n";
  ASSERT_EQ(::send(sockets[1], request.data(), request.size(), 0), std::ssize(request));
  ASSERT_TRUE(connection.await_request());
  const HttpHead head = connection.read_head();
  const std::string filling(1 << 16, 'a');
  while (::send(sockets[0], filling.data(), filling.size(), MSG_DONTWAIT) > 0) {
  }
  auto body = std::async(std::launch::async, [&] { return connection.read_body(head); });
  std::string received;
  std::string piece(1 << 16, ' ');
  while (!received.ends_with("100 Continue\r\n\r\n")) {
    const ssize_t count = ::recv(sockets[1], piece.data(), piece.size(), 0);
    ASSERT_GT(count, 0);
    received.append(piece, 0, static_cast<size_t>(count));
  }
  while (seats.waits(seat) == HttpSeats::Waits::for_client_to_read) std::this_thread::yield();
  const bool taken = seats.take(sockets[1], &another);
  EXPECT_TRUE(taken);
  ::shutdown(sockets[1], SHUT_RDWR);  // so that it ends, whether or not it gives way
  try {
    body.get();
    ADD_FAILURE() << "a body that was not sent";
  } catch (const HttpRefusal& e) {
    EXPECT_EQ(e.status, 503);
  } catch (const HttpConnection::Gone&) {
    EXPECT_FALSE(taken);
  }
  ::close(sockets[0]);
  ::close(sockets[1]);
}

// 2,700 times the whole of an answer, for 8 KB.
TEST(HttpServer, GivesNoPartsOfAnswers) {
  const Running server({}, echo);
  std::string all = "bytes=0-";
  for (int i = 0; i < 2700; ++i) all += ",0-";
  for (const std::string& range : {std::string("bytes=0-1"), std::string("bytes=9-1"), all}) {
    const std::string answer = server.ask(
        "GET /whole HTTP/1.1\r\nHost: a\r\nConnection: close\r\nRange: " + range + "\r\n\r\n");
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(answer, HasSubstr("Content-Length: 11\r\n"));
    EXPECT_TRUE(answer.ends_with("\r\n\r\nGET /whole ")) << answer;
  }
}

// One byte after another, each in time, and never the last.
TEST(HttpServer, DoesNotWaitForASlowClient) {
  const Running server({.read_seconds = 0.2}, echo);
  Client client(server.port);
  client.send("POST / HTTP/1.1\r\nHost: a\r\nX: ");
  EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 408"));
  Client half(server.port);
  half.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
  EXPECT_THAT(half.read_all(), StartsWith("HTTP/1.1 408"));
  EXPECT_THAT(server.ask(post("/", "fine")), HasSubstr("POST / fine"));
  EXPECT_EQ(server.refused(), 2);
}

// A client whose request is answered until `answer` is called.
class Held {
 public:
  explicit Held(const HttpLimits& limits)
      : server(limits,
               [this](const HttpRequest& request) {
                 if (request.path == "/held") {
                   arrived_.count_down();
                   answer_.wait();
                 }
                 return echo(request);
               }),
        client(server.port) {
    client.send(post("/held", ""));
    arrived_.wait();
  }
  void answer() { answer_.count_down(); }

 private:
  std::latch arrived_{1}, answer_{1};

 public:
  const Running server;
  Client client;
};

TEST(HttpServer, RefusesOneConnectionTooMany) {
  Held held({.connections = 1, .grace_seconds = 0});
  for (const size_t bytes : {0, 1 << 20}) {  // more than is on the way when it is refused
    Client refused(held.server.port);
    refused.send(post("/", std::string(bytes, 'a')));
    const std::string answer = refused.read_all();
    EXPECT_THAT(answer, StartsWith("HTTP/1.1 503"));
    EXPECT_THAT(answer, HasSubstr("serves 1 at most"));
    EXPECT_THAT(answer, HasSubstr("Retry-After: 1"));
    EXPECT_FALSE(refused.was_reset());
  }
  EXPECT_EQ(held.server.refused(), 2);
  held.answer();
  EXPECT_THAT(held.client.read_all(), HasSubstr("POST /held"));
}

// Nobody is shut out by those who only hold connections open.
TEST(HttpServer, ThoseThatWaitGiveWay) {
  Held held({.connections = 4, .grace_seconds = 0, .read_seconds = 1000, .idle_seconds = 1000});
  Client half(held.server.port);
  half.send("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n");
  half.read_to("\r\n\r\n");  // it waits for the rest from here on
  half.send("half");
  Client silent(held.server.port), silent_too(held.server.port);

  // Of those that have sent nothing the one that has waited longest, and only then the other.
  Client first(held.server.port);
  EXPECT_EQ(silent.read_all(), "");
  EXPECT_FALSE(silent.was_reset());
  Client second(held.server.port);
  EXPECT_EQ(silent_too.read_all(), "");
  for (Client* client : {&first, &second}) {
    client->send(post("/new", ""));
    EXPECT_THAT(client->read_all(), HasSubstr("POST /new"));
  }
  half.send("body");
  EXPECT_THAT(half.read_to("POST /half halfbody"), HasSubstr("200 OK"));
  held.answer();
  EXPECT_THAT(held.client.read_all(), HasSubstr("POST /held"));
  EXPECT_EQ(held.server.refused(), 0);
}

TEST(HttpServer, HalfARequestGivesWayAndIsToldSo) {
  const Running server({.connections = 1, .grace_seconds = 0, .read_seconds = 1000}, echo);
  Client half(server.port);
  half.send("POST /half HTTP/1.1\r\nHost: a\r\nContent-Length: 8\r\nExpect: 100-continue\r\n\r\n");
  half.read_to("\r\n\r\n");
  EXPECT_THAT(server.ask(post("/whole", "")), HasSubstr("POST /whole"));
  EXPECT_THAT(half.read_all(), StartsWith("HTTP/1.1 503"));
  EXPECT_EQ(server.refused(), 1);
}

// A client that asks for much and reads nothing.
TEST(HttpServer, WhoDoesNotReadGivesWay) {
  const Running server(
      {.connections = 1, .grace_seconds = 0, .write_seconds = 1000},
      [](const HttpRequest& request) {
        return HttpReply{.body = std::string(request.path == "/large" ? 64 << 20 : 1, 'a')};
      });
  Client deaf(server.port);
  deaf.send(post("/large", ""));
  deaf.read_to("\r\n\r\n");
  std::string answer;
  do {  // until what is sent to it is more than the system holds
    answer = server.ask(post("/small", ""));
  } while (answer.starts_with("HTTP/1.1 503"));
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, ANewConnectionHasItsGrace) {
  const Running server({.connections = 1, .grace_seconds = 1000}, echo);
  Client first(server.port);
  EXPECT_THAT(server.ask(post("/", "")), StartsWith("HTTP/1.1 503"));
  first.send(post("/first", ""));
  EXPECT_THAT(first.read_all(), HasSubstr("POST /first"));
}

// Which of the two it is cannot be told.
TEST(HttpServer, TakesAHalfClosedClientForGone) {
  const Running server({}, [](const HttpRequest& request) {
    while (!request.gone()) std::this_thread::yield();
    return HttpReply{.status = 499};
  });
  Client client(server.port);
  client.send(post("/", ""));
  client.send_no_more();
  const std::string answer = client.read_all();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 499 Client Closed Request\r\n"));
}

TEST(HttpServer, PromisesNoTimeThatAConnectionIsKept) {
  const Running server({}, echo);
  Client client(server.port);
  client.send(post("/a", "", ""));
  EXPECT_THAT(client.read_to("\r\n\r\n"), Not(HasSubstr("Keep-Alive")));
}

// Of HTTP/1.0, which has no chunks: the connection's end is the answer's.
TEST(HttpServer, StreamsToAnOldClient) {
  const Running server({}, [](const HttpRequest&) {
    return HttpReply{.stream = [](const Send& send) {
      send("one ");
      send("");
      send("two");
    }};
  });
  EXPECT_THAT(server.ask("GET / HTTP/1.0\r\n\r\n"), ::testing::EndsWith("\r\n\r\none two"));
  EXPECT_THAT(server.ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"),
              ::testing::EndsWith("\r\n\r\n4\r\none \r\n3\r\ntwo\r\n0\r\n\r\n"));
  EXPECT_THAT(server.ask("HEAD / HTTP/1.0\r\n\r\n"), ::testing::EndsWith("\r\n\r\n"));
}

TEST(HttpServer, TellsThatAClientHasGone) {
  std::promise<bool> before, sent;
  std::latch closed(1);
  const Running server({}, [&](const HttpRequest& request) {
    if (request.path != "/stream") return echo(request);
    return HttpReply{.type = "text/event-stream", .stream = [&](const Send& send) {
                       before.set_value(send("data: 1\n\n"));
                       closed.wait();
                       bool still = true;
                       for (int i = 0; i < 1000 && still; ++i)
                         still = send(std::string(10000, 'a'));
                       sent.set_value(still);
                     }};
  });
  Client client(server.port);
  client.send(post("/stream", ""));
  client.read_to("data: 1\n\n");
  EXPECT_TRUE(before.get_future().get());
  client.close();
  closed.count_down();
  EXPECT_FALSE(sent.get_future().get());
}

TEST(HttpServer, HasAPortForItself) {
  const Running server({}, echo);
  HttpServer other({}, {});
  EXPECT_THROW(other.bind("127.0.0.1", server.port), Error);
  EXPECT_THROW(other.bind("192.0.2.1", 0), Error);
}

// `attnres serve`, and what it says.
class Program {
 public:
  explicit Program(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {ATTNRES_PROGRAM, "serve", "--port", "0"});
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::dup2(pipe[1], STDERR_FILENO);
      ::close(pipe[0]);
      ::close(pipe[1]);
      std::vector<char*> pointers;
      for (std::string& argument : arguments) pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      ::execv(ATTNRES_PROGRAM, pointers.data());
      ::_exit(127);
    }
    ::close(pipe[1]);
    said_ = ::fdopen(pipe[0], "r");
  }
  ~Program() {
    if (pid_ > 0) end(SIGKILL);
    if (said_ != nullptr) std::fclose(said_);
  }

  // The next line, empty at the end.
  std::string line() {
    char text[4096];
    return std::fgets(text, sizeof(text), said_) == nullptr ? "" : text;
  }
  // The port it listens on.
  int port() {
    std::string text;
    const std::string begin = "listening on http://127.0.0.1:";
    while (!(text = line()).empty()) {
      const size_t at = text.find(begin);
      if (at != std::string::npos) return std::stoi(text.substr(at + begin.size()));
    }
    return -1;
  }
  // Whatever it says then is read by nobody.
  void stop_reading() {
    std::fclose(said_);
    said_ = nullptr;
  }
  int end(int signal) {
    ::kill(pid_, signal);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
  std::FILE* said_;
};

TEST(ServeProgram, ServesAndEndsWhenItIsTold) {
  Program program({"--model", testing::kModel, "--slots", "2"});
  const int port = program.port();
  ASSERT_GT(port, 0);
  Client client(port);
  client.send(post("/v1/completions", R"({"prompt": "KING", "max_tokens": 3, "stream": true})"));
  EXPECT_THAT(client.read_all(), HasSubstr("data: [DONE]"));
  EXPECT_THAT(program.line(), HasSubstr("POST \"/v1/completions\" 200"));
  EXPECT_EQ(program.end(SIGTERM), 0);
}

TEST(ServeProgram, ServesOnWithoutAReaderOfItsLog) {
  Program program({"--model", testing::kModel});
  const int port = program.port();
  ASSERT_GT(port, 0);
  program.stop_reading();
  for (int i = 0; i < 3; ++i) {
    Client client(port);
    client.send("GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 200"));
    std::this_thread::sleep_for(std::chrono::milliseconds(200));  // that it looks for a signal
  }
  EXPECT_EQ(program.end(SIGTERM), 0);
}

// On the head alone: none of the body is waited for.
TEST(ServeProgram, AsksForItsKeyBeforeABody) {
  const std::filesystem::path key = fresh_folder("serve_key") / "key";
  write_file(key, "secret\n");
  Program program({"--model", testing::kModel, "--api-key-file", key.string()});
  const int port = program.port();
  ASSERT_GT(port, 0);
  const auto ask = [&](const std::string& given) {
    Client client(port);
    client.send("POST /v1/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer " + given +
                "\r\nContent-Encoding: br\r\nContent-Length: 405\r\n\r\n");
    return client.read_all();
  };
  EXPECT_THAT(ask("another"), StartsWith("HTTP/1.1 401"));
  EXPECT_THAT(program.line(), HasSubstr("401"));
  EXPECT_THAT(ask("secret"), StartsWith("HTTP/1.1 415"));
  EXPECT_THAT(program.line(), HasSubstr("415"));
  EXPECT_EQ(program.end(SIGTERM), 0);
}

// What runs is finished; what takes longer than it has is ended, and told so.
TEST(ServeProgram, DrainsWhatRuns) {
  Program program({"--model", testing::kModel, "--drain", "0"});
  const int port = program.port();
  Client client(port);
  Json body = {{"prompt", "KING"}, {"max_tokens", 200}, {"stream", true}, {"n", 64}};
  client.send(post("/v1/completions", body.dump()));
  client.read_to("\n\n");
  const int code = program.end(SIGTERM);
  EXPECT_EQ(code, 0);
  const std::string said = client.read_all();
  EXPECT_THAT(said, HasSubstr("the server ends"));
  EXPECT_THAT(said, HasSubstr("\"code\":\"shutting_down\""));
}

TEST(ServeProgram, WantsAKeyBeyondThisMachine) {
  Program program({"--model", testing::kModel, "--host", "0.0.0.0"});
  EXPECT_THAT(program.line(), HasSubstr("--api-key-file"));
  EXPECT_EQ(program.end(0), 2);
}

}  // namespace
}  // namespace attnres::http_server_test
