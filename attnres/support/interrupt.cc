#include "attnres/support/interrupt.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace attnres {
namespace {

std::atomic<bool> flag = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not wait for a lock");

std::atomic<const char*> said_at_once = nullptr;

extern "C" void on_signal(int signal) {
  const bool is_first = !flag.exchange(true);
  const char* said = said_at_once.load();
  if (is_first && signal == SIGINT && said != nullptr) {
    const int before = errno;
    (void)!::write(STDERR_FILENO, said, std::strlen(said));
    errno = before;
  }
  if (is_first || signal == SIGHUP || signal == SIGPIPE) return;
  // The second: die of the signal, so that the parent sees what ended the process.
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

InterruptGuard::InterruptGuard(const char* said) {
  flag = false;
  said_at_once = said;
  struct sigaction action = {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART | SA_ONSTACK;  // a write that is under way goes on
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_interrupt_);
  sigaction(SIGTERM, &action, &previous_terminate_);
  sigaction(SIGPIPE, &action, &previous_pipe_);
  sigaction(SIGHUP, nullptr, &previous_hangup_);
  if (previous_hangup_.sa_handler != SIG_IGN) sigaction(SIGHUP, &action, nullptr);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGINT, &previous_interrupt_, nullptr);
  sigaction(SIGTERM, &previous_terminate_, nullptr);
  sigaction(SIGHUP, &previous_hangup_, nullptr);
  sigaction(SIGPIPE, &previous_pipe_, nullptr);
}

bool interrupted() {
  return flag.load(std::memory_order_relaxed);
}

}  // namespace attnres
