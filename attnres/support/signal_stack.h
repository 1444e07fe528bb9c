// A stack for signal handlers. Inside oneDNN's matrix products a thread's stack pointer points into
// the heap, where the frame of a signal would overwrite what others keep there
// (uxlfoundation/oneDNN#4845).
#pragma once

#include <csignal>
#include <vector>

namespace attnres {

// While it lives, handlers that were installed with SA_ONSTACK run on it in the thread that made
// it, which is the one that destroys it; on another where the thread has one already.
class SignalStack {
 public:
  SignalStack();
  ~SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;

 private:
  std::vector<char> stack_;  // empty: not ours
};

}  // namespace attnres
