#include "attnres/support/interrupt.h"

#include <atomic>

namespace attnres {
namespace {

std::atomic<bool> flag = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler may not wait for a lock");

extern "C" void on_signal(int signal) {
  if (!flag.exchange(true) || signal == SIGHUP || signal == SIGPIPE) return;
  // The second: die of the signal, so that the parent sees what ended the process.
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  flag = false;
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
