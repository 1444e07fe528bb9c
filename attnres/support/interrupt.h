// Ctrl-C, a dropped connection, a reader of the output that goes away: they let long work save what
// it has.
#pragma once

#include <csignal>

#include "attnres/support/signal_stack.h"

namespace attnres {

// While it lives, the first SIGINT, SIGTERM, SIGHUP or SIGPIPE only makes interrupted() true; a
// SIGINT or SIGTERM after that ends the process at once, as it would without a guard. A terminal
// that goes away often sends two SIGHUP, and every line to a reader that has gone a SIGPIPE, so
// those never do; where SIGHUP was ignored (nohup), it still is. One guard lives at a time, made by
// the main thread: the system delivers a process's signals there.
class InterruptGuard {
 public:
  // interrupted() is false again. `said`, a line that lives as long, is written to standard error
  // at once when the first Ctrl-C comes.
  explicit InterruptGuard(const char* said = nullptr);
  ~InterruptGuard();  // what the signals did before, they do again
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  SignalStack stack_;
  struct sigaction previous_interrupt_, previous_terminate_, previous_hangup_, previous_pipe_;
};

// Whether a signal came since the last guard was made. Cheap: ask as often as you like.
bool interrupted();

}  // namespace attnres
