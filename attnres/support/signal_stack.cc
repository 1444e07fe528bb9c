#include "attnres/support/signal_stack.h"

namespace attnres {

SignalStack::SignalStack() {
  stack_t present = {};
  sigaltstack(nullptr, &present);
  if ((present.ss_flags & SS_DISABLE) == 0) return;
  stack_.resize(static_cast<size_t>(SIGSTKSZ));
  const stack_t own = {.ss_sp = stack_.data(), .ss_flags = 0, .ss_size = stack_.size()};
  sigaltstack(&own, nullptr);
}

SignalStack::~SignalStack() {
  if (stack_.empty()) return;
  const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
  sigaltstack(&none, nullptr);
}

}  // namespace attnres
