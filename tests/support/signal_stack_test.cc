#include "attnres/support/signal_stack.h"

#include <gtest/gtest.h>

#include <thread>

namespace attnres::signal_stack_test {
namespace {

bool has_stack() {
  stack_t present = {};
  sigaltstack(nullptr, &present);
  return (present.ss_flags & SS_DISABLE) == 0;
}

// A thread begins without one, under sanitizers too, which give one to each.
void in_a_bare_thread(void (*work)()) {
  std::jthread([work] {
    const stack_t none = {.ss_sp = nullptr, .ss_flags = SS_DISABLE, .ss_size = 0};
    stack_t before = {};
    sigaltstack(&none, &before);
    work();
    sigaltstack(&before, nullptr);
  });
}

volatile sig_atomic_t was_on_it = 0;

void note_where() {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int) {
    stack_t present = {};
    sigaltstack(nullptr, &present);
    was_on_it = (present.ss_flags & SS_ONSTACK) != 0;
  };
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, &before);
  std::raise(SIGUSR1);
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(SignalStack, IsWhereHandlersRunWhileItLives) {
  in_a_bare_thread([] {
    note_where();
    EXPECT_FALSE(was_on_it);
    {
      const SignalStack stack;
      note_where();
      EXPECT_TRUE(was_on_it);
    }
    EXPECT_FALSE(has_stack());
  });
}

TEST(SignalStack, LeavesAnothersAlone) {
  in_a_bare_thread([] {
    const SignalStack first;
    { const SignalStack second; }
    EXPECT_TRUE(has_stack());
  });
}

}  // namespace
}  // namespace attnres::signal_stack_test
