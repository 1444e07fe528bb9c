// Processes that others have started.
#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace attnres::testing {

// Who started a process; 0 for what is none.
inline pid_t parent_of(const std::string& process) {
  std::ifstream stat("/proc/" + process + "/stat");
  std::string line;
  std::getline(stat, line);
  std::istringstream after_name(line.substr(std::min(line.rfind(')') + 1, line.size())));
  char state = 'X';
  pid_t parent = 0;
  after_name >> state >> parent;
  return parent;
}

// The processes that mpirun has started.
inline std::vector<pid_t> children_of(pid_t parent) {
  std::vector<pid_t> children;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string process = entry.path().filename();
    if (process.find_first_not_of("0123456789") != std::string::npos) continue;
    if (parent_of(process) == parent) children.push_back(std::stoi(process));
  }
  return children;
}

// A process that is no child of this one.
class Stranger {
 public:
  explicit Stranger(pid_t process)
      : handle_(static_cast<int>(::syscall(SYS_pidfd_open, process, 0))) {}
  ~Stranger() { ::close(handle_); }
  Stranger(const Stranger&) = delete;
  Stranger& operator=(const Stranger&) = delete;

  // Waits for its end, for half a minute at most.
  bool ends() const {
    pollfd end = {.fd = handle_, .events = POLLIN, .revents = 0};
    return ::poll(&end, 1, 30'000) == 1;
  }

 private:
  int handle_;
};

// What mpirun has started.
class Ranks {
 public:
  explicit Ranks(pid_t launcher) : ids_(children_of(launcher)) {
    for (const pid_t id : ids_) processes_.push_back(std::make_unique<Stranger>(id));
  }
  size_t count() const { return ids_.size(); }
  void signal_last(int signal) const { ::kill(ids_.back(), signal); }
  bool all_end() const {
    return std::all_of(processes_.begin(), processes_.end(),
                       [](const auto& process) { return process->ends(); });
  }

 private:
  std::vector<pid_t> ids_;
  std::vector<std::unique_ptr<Stranger>> processes_;
};

}  // namespace attnres::testing
