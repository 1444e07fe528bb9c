// Programs that run beside this one. Linux.
#pragma once

#include <sys/types.h>

#include <filesystem>
#include <string>
#include <vector>

namespace attnres {

// The processors that this process may run on, ascending; empty where that cannot be found out.
std::vector<int> usable_cpus();

struct ProcessOptions {
  std::filesystem::path program;
  std::vector<std::string> arguments;  // without the program's name
  std::filesystem::path output;        // a file for what it prints, begun anew
  std::filesystem::path errors = {};   // and for its errors; empty: they go to `output` too
  std::vector<int> cpus = {};          // to run on; empty: as this process
};

// A program that was started. It hears nothing of the terminal's Ctrl-C, and is killed when the
// thread that started it ends, however that comes, so that nothing goes on unwatched.
class ChildProcess {
 public:
  // Throws Error when no process can be made. A program that cannot be run ends with code 127, and
  // the reason among the errors.
  explicit ChildProcess(const ProcessOptions& options);
  ~ChildProcess();  // interrupts it where it still runs, and waits for its end
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  bool is_running();  // does not wait
  void interrupt();   // SIGINT; does nothing where it has ended
  // The exit code of one that has ended, or 128 + the signal that ended it.
  int exit_code() const { return exit_code_; }

 private:
  void ended(int status);

  pid_t pid_ = -1;  // -1: it has ended
  int exit_code_ = 0;
};

}  // namespace attnres
