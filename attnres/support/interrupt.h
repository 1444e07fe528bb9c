// Ctrl-C that lets long work save what it has.
#pragma once

#include <csignal>

namespace attnres {

// While it lives, the first SIGINT or SIGTERM only makes interrupted() true; the next one ends the
// process at once, as it would without a guard. One guard lives at a time.
class InterruptGuard {
 public:
  InterruptGuard();   // interrupted() is false again
  ~InterruptGuard();  // what the signals did before, they do again
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

 private:
  struct sigaction previous_interrupt_, previous_terminate_;
};

// Whether a signal came since the last guard was made. Cheap: ask as often as you like.
bool interrupted();

}  // namespace attnres
