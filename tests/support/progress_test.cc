#include "attnres/support/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "attnres/support/format.h"

namespace attnres::progress_test {
namespace {

// A stream and a clock in the test's hands.
struct Screen {
  std::string text;
  double now = 100;
  int columns = 80;

  ProgressOutput output(bool terminal) {
    return {.write = [this](std::string_view more) { text += more; },
            .terminal = terminal,
            .columns = [this] { return columns; },
            .clock = [this] { return now; }};
  }
};

TEST(ProgressLine, LogGetsFirstThenEveryTenSecondsThenLast) {
  Screen screen;
  ProgressLine line(screen.output(/*terminal=*/false));
  for (int step = 0; step < 26; ++step, screen.now += 1) line.update(std::to_string(step));
  EXPECT_EQ(screen.text, "0\n10\n20\n");
  line.finish();
  EXPECT_EQ(screen.text, "0\n10\n20\n25\n");
  line.finish();
  EXPECT_EQ(screen.text, "0\n10\n20\n25\n");
}

TEST(ProgressLine, LastIsNotShownTwice) {
  Screen screen;
  { ProgressLine(screen.output(false)).update("only"); }
  EXPECT_EQ(screen.text, "only\n");
}

TEST(ProgressLine, TerminalRewritesInPlace) {
  Screen screen;
  ProgressLine line(screen.output(/*terminal=*/true));
  line.update("one");
  line.update("too soon");
  screen.now += 1;
  line.update("two");
  EXPECT_EQ(screen.text, "\rone\x1b[K\rtwo\x1b[K");
  line.finish();
  EXPECT_EQ(screen.text, "\rone\x1b[K\rtwo\x1b[K\n");
}

TEST(ProgressLine, TerminalCutsAtItsWidthBetweenCharacters) {
  Screen screen;
  screen.columns = 5;
  ProgressLine line(screen.output(true));
  line.update("äöü€xyz");
  EXPECT_EQ(screen.text, "\räöü€\x1b[K");
}

TEST(ProgressLine, MessageStaysAboveTheLine) {
  Screen screen;
  ProgressLine line(screen.output(true));
  line.update("half");
  screen.text.clear();
  line.message("note");
  EXPECT_EQ(screen.text, "\r\x1b[Knote\n\rhalf\x1b[K");
  line.finish();
  screen.text.clear();
  line.message("after");
  EXPECT_EQ(screen.text, "after\n");
}

TEST(Eta, MeanRateSinceTheStart) {
  double now = 50;
  const Eta eta(/*total=*/100, /*done=*/20, [&] { return now; });
  EXPECT_TRUE(std::isinf(eta.left(20)));
  now = 60;
  EXPECT_DOUBLE_EQ(eta.rate(40), 2);
  EXPECT_DOUBLE_EQ(eta.left(40), 30);
  EXPECT_DOUBLE_EQ(eta.left(100), 0);
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.3504), "350ms");
  EXPECT_EQ(format_duration(1e19), "?");
  EXPECT_EQ(format_duration(0.9996), "1.0s");
  EXPECT_EQ(format_duration(9.96), "10s");
  EXPECT_EQ(format_duration(59.6), "1m00s");
  EXPECT_EQ(format_duration(192), "3m12s");
  EXPECT_EQ(format_duration(7500), "2h05m");
  EXPECT_EQ(format_duration(86400 * 3 + 3600 * 4), "3d04h");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "?");
}

TEST(Format, CountsRatesAndBytes) {
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(12, "file"), "12 files");
  EXPECT_EQ(counted(1, "entry"), "1 entry");
  EXPECT_EQ(counted(2, "entry"), "2 entries");
  EXPECT_EQ(counted(2, "key"), "2 keys");
  EXPECT_EQ(counted(2, "process"), "2 processes");
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(950), "950");
  EXPECT_EQ(format_count(999.7), "1.0K");
  EXPECT_EQ(format_count(999960), "1.0M");
  EXPECT_EQ(format_count(1.24e6), "1.2M");
  EXPECT_EQ(format_count(3.4e15), "3400.0T");
  EXPECT_EQ(format_rate(12340, "tokens"), "12.3K tokens/s");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(3.4 * 1024 * 1024 * 1024), "3.4 GiB");
}

}  // namespace
}  // namespace attnres::progress_test
