// The program `attnres serve` as its user meets it: what it says, and how it ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "attnres/support/file.h"
#include "tests/serve/http_client.h"
#include "tests/serve/served.h"
#include "tests/text/test_files.h"

namespace attnres::serve_program_test {
namespace {

using testing::Client;
using ::testing::HasSubstr;
using testing::post;
using ::testing::StartsWith;

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

// What is asked stays on its line, and tells a terminal nothing: escapes, and C1 controls too.
TEST(ServeProgram, LogsWhatIsAskedAsText) {
  for (const std::string kind : {"text", "json"}) {
    Program program({"--model", testing::kModel, "--log", kind});
    const int port = program.port();
    ASSERT_GT(port, 0);
    Client client(port);
    client.send(post("/%1b[31m%0d%0a200%c2%9b1m%7f%ff", ""));
    EXPECT_THAT(client.read_all(), StartsWith("HTTP/1.1 404"));
    const std::string line = program.line();
    EXPECT_THAT(line, HasSubstr(R"(/\u001b[31m\r\n200\u009b1m\u007f\ufffd")"));
    for (const char byte : line) EXPECT_TRUE((byte >= ' ' && byte < '\x7f') || byte == '\n');
    EXPECT_EQ(line.back(), '\n');
    EXPECT_EQ(program.end(SIGTERM), 0);
  }
}

}  // namespace
}  // namespace attnres::serve_program_test
