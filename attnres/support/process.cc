#include "attnres/support/process.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "attnres/support/error.h"

namespace attnres {
namespace {

// What a child needs, all of it made before the fork: between fork and exec nothing may be
// allocated, since another thread may have held the allocator's lock.
struct Launch {
  std::vector<char*> arguments;
  const char* output;
  const char* errors;  // null: to the output
  cpu_set_t cpus;
  bool pinned;
  pid_t parent;
};

[[noreturn]] void give_up(const char* what) {
  const char* reason = ::strerrordesc_np(errno);
  for (const char* text : {what, ": ", reason ? reason : "unknown error", "\n"}) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text, std::strlen(text));
  }
  ::_exit(127);
}

[[noreturn]] void become(const Launch& launch) {
  ::setpgid(0, 0);  // out of reach of the terminal's signals
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != launch.parent) ::_exit(127);  // it ended before it could be heard of
  const int input = ::open("/dev/null", O_RDONLY);
  const auto open_new = [](const char* file) {
    const int descriptor = ::open(file, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (descriptor < 0) give_up(file);
    return descriptor;
  };
  const int output = open_new(launch.output);
  const int errors = launch.errors == nullptr ? output : open_new(launch.errors);
  ::dup2(input, STDIN_FILENO);
  ::dup2(output, STDOUT_FILENO);
  ::dup2(errors, STDERR_FILENO);
  ::close(input);
  ::close(output);
  if (errors != output) ::close(errors);
  if (launch.pinned) ::sched_setaffinity(0, sizeof(launch.cpus), &launch.cpus);
  ::execv(launch.arguments[0], launch.arguments.data());
  give_up(launch.arguments[0]);
}

}  // namespace

std::vector<int> usable_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (::sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

ChildProcess::ChildProcess(const ProcessOptions& options) {
  std::vector<std::string> words = {options.program.string()};
  words.insert(words.end(), options.arguments.begin(), options.arguments.end());
  Launch launch = {.arguments = {},
                   .output = options.output.c_str(),
                   .errors = options.errors.empty() ? nullptr : options.errors.c_str(),
                   .cpus = {},
                   .pinned = !options.cpus.empty(),
                   .parent = ::getpid()};
  for (std::string& word : words) launch.arguments.push_back(word.data());
  launch.arguments.push_back(nullptr);
  CPU_ZERO(&launch.cpus);
  for (const int cpu : options.cpus) CPU_SET(cpu, &launch.cpus);
  pid_ = ::fork();
  require(pid_ >= 0, "{}: cannot be started: {}", options.program.string(), std::strerror(errno));
  if (pid_ == 0) become(launch);
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0) return;
  interrupt();
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
}

bool ChildProcess::is_running() {
  if (pid_ < 0) return false;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) == pid_) ended(status);
  return pid_ >= 0;
}

void ChildProcess::interrupt() {
  if (pid_ >= 0) ::kill(pid_, SIGINT);
}

void ChildProcess::ended(int status) {
  pid_ = -1;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace attnres
