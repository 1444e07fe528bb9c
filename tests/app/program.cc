#include "tests/app/program.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>
#include <wordexp.h>

#include <array>
#include <csignal>
#include <optional>
#include <string_view>
#include <vector>

#include "app/program_main.h"

namespace attnres::testing {
namespace {

namespace fs = std::filesystem;

// As the shell takes it apart; null where it is more than words and quotes.
std::optional<std::vector<std::string>> words_of(const std::string& line) {
  wordexp_t expanded;
  if (::wordexp(line.c_str(), &expanded, WRDE_NOCMD | WRDE_UNDEF) != 0) return std::nullopt;
  std::vector<std::string> words(expanded.we_wordv, expanded.we_wordv + expanded.we_wordc);
  ::wordfree(&expanded);
  return words;
}

// As /proc/self/exe, which is the tests here.
bool starts_the_program(const std::vector<std::string>& words) {
  return !words.empty() && (words[0] == "study" || words[0] == "compare");
}

void open_as(int stream, const std::string& file) {
  const int opened = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
  if (opened < 0 || ::dup2(opened, stream) < 0) ::_exit(127);
  ::close(opened);
}

// A process that was forked before any test had threads, and forks a child for each command line:
// no thread pool of a test is missing there. It ends with this process.
class Starter : public ::testing::Environment {
 public:
  void SetUp() override {
    std::array<int, 2> sockets{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets.data()), 0);
    std::fflush(nullptr);
    const pid_t pid = ::fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::close(sockets[0]);
      serve(sockets[1]);
    }
    ::close(sockets[1]);
    socket_ = sockets[0];
  }
  void TearDown() override { ::close(socket_); }

  // The words: files for what the program prints and for its errors, the folder it is started in,
  // and its command line. Returns what waitpid tells of it; null where the words are too many.
  std::optional<int> run(const std::vector<std::string>& words) {
    std::string message;
    for (const std::string& word : words) message.append(word).push_back('\0');
    int status = 0;
    if (::send(socket_, message.data(), message.size(), MSG_NOSIGNAL) < 0) return std::nullopt;
    EXPECT_EQ(::recv(socket_, &status, sizeof status, 0), static_cast<ssize_t>(sizeof status));
    return status;
  }

 private:
  [[noreturn]] static void serve(int socket) {
    std::vector<char> message(1 << 20);
    while (true) {
      const ssize_t size = ::recv(socket, message.data(), message.size(), 0);
      if (size <= 0) ::_exit(0);
      const pid_t child = ::fork();
      if (child == 0) start({message.data(), static_cast<size_t>(size)});
      int status = 0;
      ::waitpid(child, &status, 0);
      if (::send(socket, &status, sizeof status, MSG_NOSIGNAL) < 0) ::_exit(1);
    }
  }

  [[noreturn]] static void start(std::string_view message) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    std::vector<std::string> words;
    for (; !message.empty(); message.remove_prefix(words.back().size() + 1)) {
      words.emplace_back(message.substr(0, message.find('\0')));
    }
    open_as(STDOUT_FILENO, words[0]);
    open_as(STDERR_FILENO, words[1]);
    if (::chdir(words[2].c_str()) != 0) ::_exit(127);
    std::vector<char*> pointers;
    for (auto word = words.begin() + 3; word != words.end(); ++word)
      pointers.push_back(word->data());
    pointers.push_back(nullptr);
    end_program(program_main(static_cast<int>(pointers.size()) - 1, pointers.data()));
  }

  int socket_ = -1;
};

// Belongs to gtest, which sets it up before the first test.
Starter* const starter = [] {
  auto* made = new Starter;
  ::testing::AddGlobalTestEnvironment(made);
  return made;
}();

}  // namespace

Result run_program(const std::string& arguments) {
  const auto words = words_of(arguments);
  if (!words || starts_the_program(*words)) return run_shell("attnres " + arguments);
  const fs::path folder = fresh_folder("program");
  std::vector<std::string> all = {folder / "out", folder / "err", fs::current_path(), "attnres"};
  all.insert(all.end(), words->begin(), words->end());
  const auto status = starter->run(all);
  return status ? result_of(*status, folder) : run_shell("attnres " + arguments);
}

}  // namespace attnres::testing
