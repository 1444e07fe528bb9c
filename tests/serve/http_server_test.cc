// The server on a socket: clients that are slow, too many or gone, and how it answers.
#include "attnres/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <future>
#include <latch>
#include <string>
#include <thread>

#include "attnres/serve/http_bodies.h"
#include "attnres/serve/http_connection.h"
#include "attnres/serve/http_seats.h"
#include "attnres/support/error.h"
#include "tests/serve/running_server.h"

namespace attnres::http_server_test {
namespace {

using ::testing::AllOf;
using testing::Client;
using testing::echo;
using ::testing::HasSubstr;
using testing::post;
using testing::Running;
using ::testing::StartsWith;

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

TEST(HttpServer, SaysWhenItAnswers) {
  const Running server({}, echo);
  EXPECT_THAT(server.ask(post("/", "")),
              ::testing::ContainsRegex("Date: [A-Z][a-z][a-z], [0-9][0-9] [A-Z][a-z][a-z] "
                                       "[0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT\r\n"));
}

// Where the client was slow to take that, its connection still waits for its body.
TEST(HttpConnection, GivesWayAfterAContinueThatHadToWait) {
  int sockets[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets), 0);
  HttpSeats seats(1, 0);
  HttpSeats::Taken seat, another;
  ASSERT_TRUE(seats.take(sockets[0], &seat));
  const HttpLimits limits = {.read_seconds = 1000, .write_seconds = 1000};
  HttpBodies bodies(limits.bodies_bytes);
  HttpConnection connection(sockets[0], limits, seats, seat, bodies);
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

  // The one that has waited longest of those that have sent nothing, and only then the other.
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

TEST(HttpServer, HoldsSoManyBytesOfBodiesAtOnce) {
  std::promise<void> begun, may_end;
  const Running server({.body_bytes = 1 << 20, .bodies_bytes = 1 << 20},
                       [&](const HttpRequest& request) {
                         if (request.path == "/held") {
                           begun.set_value();
                           may_end.get_future().get();
                         }
                         return HttpReply{.body = "it came"};
                       });
  const std::string large(1 << 20, 'a'), small(60 << 10, 'a');
  Client held(server.port);
  held.send(post("/held", large));
  begun.get_future().get();
  EXPECT_THAT(server.ask(post("/", large)),
              AllOf(StartsWith("HTTP/1.1 503"), HasSubstr("1048576 bytes")));
  EXPECT_THAT(server.ask(post("/", small)), StartsWith("HTTP/1.1 200"));
  may_end.set_value();
  EXPECT_THAT(held.read_all(), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(server.ask(post("/", large)), StartsWith("HTTP/1.1 200"));
}

TEST(HttpServer, HalfABodyGivesWayToOthers) {
  const Running server(
      {.grace_seconds = 0, .body_bytes = 1 << 20, .bodies_bytes = 1 << 20, .read_seconds = 1000},
      [](const HttpRequest&) { return HttpReply{.body = "it came"}; });
  const std::string large = post("/", std::string(1 << 20, 'a'));
  std::string told;
  for (bool both_fit = true; both_fit;) {  // where one was over before the other came
    Client half(server.port);
    half.send(large.substr(0, 900'000));
    both_fit = server.ask(large).starts_with("HTTP/1.1 200");
    if (both_fit) half.send_no_more();
    told = half.read_all();
  }
  EXPECT_THAT(told, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(server.ask(large), StartsWith("HTTP/1.1 200"));
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

// Whatever is still to come, it is written for no longer than a client may take.
TEST(HttpServer, EndsAStreamThatNobodyReads) {
  std::promise<void> ended;
  const Running server({.write_seconds = 0.1}, [&](const HttpRequest&) {
    return HttpReply{.stream = [&](const Send& send) {
      while (send(std::string(1 << 16, 'a'))) {
      }
      ended.set_value();
    }};
  });
  Client deaf(server.port);
  deaf.send(post("/", ""));
  ended.get_future().get();
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

// HTTP/1.0 has no chunks: the connection's end is the answer's.
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

}  // namespace
}  // namespace attnres::http_server_test
