#include "attnres/support/shell.h"

#include <gtest/gtest.h>

namespace attnres::shell_test {
namespace {

TEST(ForShell, QuotesWhatAShellWouldTakeApart) {
  EXPECT_EQ(for_shell("runs/tiny-2_a.b"), "runs/tiny-2_a.b");
  EXPECT_EQ(for_shell("my runs"), "'my runs'");
  EXPECT_EQ(for_shell("it's"), "'it'\\''s'");
  EXPECT_EQ(for_shell(""), "''");
}

}  // namespace
}  // namespace attnres::shell_test
