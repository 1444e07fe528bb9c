#include "attnres/support/terminal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace attnres {
namespace {

TEST(Wrapped, BreaksBetweenWordsAtTheWidth) {
  EXPECT_EQ(wrapped("one two three", 7), "one two\nthree");
  EXPECT_EQ(wrapped("one two three", 6), "one\ntwo\nthree");
  EXPECT_EQ(wrapped("one two three", 13), "one two three");
  EXPECT_EQ(wrapped("one\ntwo\nthree", 13), "one two three");
  EXPECT_EQ(wrapped("a word_that_is_longer b", 6), "a\nword_that_is_longer\nb");
  EXPECT_EQ(wrapped("", 10), "");
}

TEST(Wrapped, IndentsAllLinesButTheFirst) {
  EXPECT_EQ(wrapped("one two three", 10, 3), "one two\n   three");
}

TEST(Wrapped, KeepsEmptyLinesAndLinesThatBeginWithASpace) {
  EXPECT_EQ(wrapped("Some words.\n\nExample:\n  a command that is long\nafter it", 8),
            "Some\nwords.\n\nExample:\n  a command that is long\nafter it");
}

TEST(Wrapped, CountsCharactersNotBytes) {
  EXPECT_EQ(wrapped("äöü äöü", 7), "äöü äöü");
  EXPECT_EQ(wrapped("äöü äöü", 6), "äöü\näöü");
}

TEST(Color, IsForTerminalsWhoseUserWantsIt) {
  int primary = -1, terminal = -1;
  ASSERT_EQ(::openpty(&primary, &terminal, nullptr, nullptr, nullptr), 0);
  const auto with = [&](const char* no_color, const char* term, int descriptor) {
    ::setenv("NO_COLOR", no_color, 1);
    ::setenv("TERM", term, 1);
    return shows_color(descriptor);
  };
  const auto value_of = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  const std::string no_color_before = value_of("NO_COLOR"), term_before = value_of("TERM");
  EXPECT_TRUE(with("", "xterm", terminal));
  EXPECT_FALSE(with("1", "xterm", terminal));
  EXPECT_FALSE(with("", "dumb", terminal));
  const int pipe = ::open("/dev/null", O_WRONLY);
  EXPECT_FALSE(with("", "xterm", pipe));
  ::setenv("NO_COLOR", no_color_before.c_str(), 1);
  ::setenv("TERM", term_before.c_str(), 1);
  for (const int descriptor : {primary, terminal, pipe}) ::close(descriptor);
}

TEST(TextColumns, AreThoseOfTheEnvironment) {
  const char* before = std::getenv("COLUMNS");
  const std::string kept = before ? before : "";
  const auto with = [](const char* columns) {
    ::setenv("COLUMNS", columns, 1);
    return text_columns();
  };
  EXPECT_EQ(with("72"), 72u);
  EXPECT_EQ(with("10"), 40u);
  EXPECT_EQ(with("wide"), with(""));
  before ? ::setenv("COLUMNS", kept.c_str(), 1) : ::unsetenv("COLUMNS");
}

}  // namespace
}  // namespace attnres
