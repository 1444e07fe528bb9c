#include "attnres/support/nearest.h"

#include <gtest/gtest.h>

namespace attnres::nearest_test {
namespace {

TEST(EditDistance, KnownValues) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("sunday", "saturday"), 3);
  EXPECT_EQ(edit_distance("flaw", "lawn"), 2);
}

TEST(EditDistance, IsSymmetric) {
  for (const char* a : {"", "a", "ab", "learning_rate"}) {
    for (const char* b : {"b", "ba", "rate"}) EXPECT_EQ(edit_distance(a, b), edit_distance(b, a));
  }
}

TEST(Nearest, FindsTheTypo) {
  EXPECT_EQ(nearest("setps", {"context", "steps", "seed"}), "steps");
  EXPECT_EQ(nearest("x", {}), "");
}

TEST(DidYouMean, NamesWhatMayBeMeant) {
  const std::vector<std::string> known = {"out", "recipe", "watch", "block_attn_res"};
  EXPECT_EQ(did_you_mean("recipes", known), ": did you mean recipe?");
  EXPECT_EQ(did_you_mean("blockattnres", known), ": did you mean block_attn_res?");
  for (const char* far : {"set", "dry-run", "nosuch", "magic", ""}) {
    EXPECT_EQ(did_you_mean(far, known), "") << far;
  }
  EXPECT_EQ(did_you_mean("out", {}), "");
}

}  // namespace
}  // namespace attnres::nearest_test
