// The server on a socket: what clients send that is wrong, too much or too slow, and the program.
#include "attnres/serve/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <future>
#include <latch>
#include <thread>

#include "attnres/serve/api_error.h"
#include "attnres/support/error.h"
#include "tests/serve/http_client.h"
#include "tests/serve/served.h"

namespace attnres::http_server_test {
namespace {

using testing::Client;
using ::testing::HasSubstr;
using testing::post;
using ::testing::StartsWith;

class Running {
 public:
  explicit Running(const HttpLimits& limits, HttpHandler handler)
      : server_(limits, std::move(handler),
                [](int status, const std::string& message) {
                  return error_body(status, "http_error", message);
                }),
        port(server_.bind("127.0.0.1", 0)),
        thread_([this] { server_.run(); }) {
    // Until it listens there is nothing to stop.
    Client(port).close();
  }
  ~Running() {
    server_.stop();
    thread_.join();
  }

  std::string ask(const std::string& request) const {
    Client client(port);
    client.send(request);
    return client.read_all();
  }

 private:
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
    return server.ask("POST /a HTTP/1.1\r\nConnection: close\r\nContent-Length: 5\r\n" + another +
                      "\r\nfirst");
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
  EXPECT_THAT(server.ask("GET /x?y=1 HTTP/1.1\r\nConnection: close\r\n\r\n"), HasSubstr("GET /x "));
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

// One byte after another, each in time, and never the last.
TEST(HttpServer, DoesNotWaitForASlowClient) {
  const Running server({.read_seconds = 0.2}, echo);
  Client client(server.port);
  client.send("POST / HTTP/1.1\r\nHost: a\r\nX: ");
  EXPECT_THAT(client.read_all(), Not(HasSubstr("200 OK")));  // the connection ends
  Client half(server.port);
  half.send("POST / HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf");
  EXPECT_THAT(half.read_all(), Not(HasSubstr("200 OK")));
  EXPECT_THAT(server.ask(post("/", "fine")), HasSubstr("POST / fine"));
}

TEST(HttpServer, RefusesOneConnectionTooMany) {
  std::latch arrived(1), answer(1);
  const Running server({.connections = 1}, [&](const HttpRequest& request) {
    if (request.path == "/held") {
      arrived.count_down();
      answer.wait();
    }
    return echo(request);
  });
  // The connection that tried the port may not have ended.
  std::unique_ptr<Client> held;
  while (true) {
    held = std::make_unique<Client>(server.port);
    held->send(post("/first", "", ""));
    if (held->read_to("\r\n").starts_with("HTTP/1.1 200")) break;
  }
  held->send(post("/held", ""));
  arrived.wait();
  const std::string refused = server.ask(post("/", ""));
  EXPECT_THAT(refused, StartsWith("HTTP/1.1 503"));
  EXPECT_THAT(refused, HasSubstr("serves 1 at most"));
  answer.count_down();
  EXPECT_THAT(held->read_all(), HasSubstr("POST /held"));
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
  HttpServer other({}, echo, [](int, const std::string& message) { return message; });
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
    std::fclose(said_);
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
  EXPECT_THAT(client.read_all(), HasSubstr("the server ends"));
}

TEST(ServeProgram, WantsAKeyBeyondThisMachine) {
  Program program({"--model", testing::kModel, "--host", "0.0.0.0"});
  EXPECT_THAT(program.line(), HasSubstr("--api-key-file"));
  EXPECT_EQ(program.end(0), 2);
}

}  // namespace
}  // namespace attnres::http_server_test
