#include "attnres/support/interrupt.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

namespace attnres::interrupt_test {
namespace {

TEST(InterruptGuard, FirstSignalIsOnlyNoted) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const InterruptGuard guard;
    EXPECT_FALSE(interrupted());
    std::raise(signal);
    EXPECT_TRUE(interrupted());
  }
}

TEST(InterruptGuard, AnswersTheFirstAtOnce) {
  const auto answer = [](const char* said, int signal) {
    ::testing::internal::CaptureStderr();
    const InterruptGuard guard(said);
    std::raise(signal);
    return ::testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(answer("stopping\n", SIGINT), "stopping\n");
  EXPECT_EQ(answer("stopping\n", SIGTERM), "");
  EXPECT_EQ(answer(nullptr, SIGINT), "");
}

// How a child ended that runs `work`: the number of the signal, or 0.
template <class Work>
int ending_signal(Work work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

TEST(InterruptGuard, SecondSignalEndsTheProcess) {
  EXPECT_EQ(ending_signal([] {
              const InterruptGuard guard;
              std::raise(SIGINT);
            }),
            0);
  EXPECT_EQ(ending_signal([] {
              const InterruptGuard guard;
              std::raise(SIGINT);
              std::raise(SIGINT);
            }),
            SIGINT);
  EXPECT_EQ(ending_signal([] {
              const InterruptGuard guard;
              std::raise(SIGINT);
              std::raise(SIGTERM);
            }),
            SIGTERM);
}

// A terminal that goes away and its shell send a hangup each, a pipe whose reader has gone a signal
// for every line.
TEST(InterruptGuard, SecondHangupOrLineLetsTheWorkBeSaved) {
  for (const int signal : {SIGHUP, SIGPIPE}) {
    EXPECT_EQ(ending_signal([&] {
                const InterruptGuard guard;
                std::raise(signal);
                std::raise(signal);
                if (!interrupted()) std::abort();
              }),
              0);
    EXPECT_EQ(ending_signal([&] {
                const InterruptGuard guard;
                std::raise(signal);
                std::raise(SIGTERM);
              }),
              SIGTERM);
  }
}

TEST(InterruptGuard, LeavesHangupsIgnoredAsNohupDoes) {
  EXPECT_EQ(ending_signal([] {
              std::signal(SIGHUP, SIG_IGN);
              const InterruptGuard guard;
              std::raise(SIGHUP);
              if (interrupted()) std::abort();
            }),
            0);
}

TEST(InterruptGuard, RestoresWhatWasThere) {
  for (const int signal : {SIGTERM, SIGHUP, SIGPIPE}) {
    EXPECT_EQ(ending_signal([&] {
                { const InterruptGuard guard; }
                std::raise(signal);
              }),
              signal);
  }
}

}  // namespace
}  // namespace attnres::interrupt_test
