#include "attnres/data/passes.h"

#include <gtest/gtest.h>

namespace attnres::passes_test {
namespace {

TEST(FormatPasses, SaysHowMuchOfATextIsRead) {
  EXPECT_EQ(format_passes(42.4, "it"), "42 passes over it");
  EXPECT_EQ(format_passes(3.14, "the text"), "3.1 passes over the text");
  EXPECT_EQ(format_passes(0.999, "it"), "1.0 passes over it");
  EXPECT_EQ(format_passes(0.0562, "it"), "5.6 % of it");
  EXPECT_EQ(format_passes(0.0006, "it"), "0.06 % of it");
  EXPECT_EQ(format_passes(1e-6, "it"), "less than 0.05 % of it");
}

}  // namespace
}  // namespace attnres::passes_test
