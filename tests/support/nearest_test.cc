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
  EXPECT_EQ(nearest("num_block", {"key_norm", "block_size", "num_blocks"}), "num_blocks");
}

TEST(Nearest, KnowsNamesByAPartOrByTheirInitials) {
  const std::vector<std::string> mechanisms = {"residual", "attn_res", "block_attn_res", "keel",
                                               "dense_net"};
  EXPECT_EQ(nearest("blok", mechanisms), "block_attn_res");
  EXPECT_EQ(nearest("dense", mechanisms), "dense_net");
  EXPECT_EQ(nearest("keell", mechanisms), "keel");
  EXPECT_EQ(nearest("attn_ress", mechanisms), "attn_res");  // and not by the part res
  const std::vector<std::string> keys = {"steps", "clip", "learning_rate", "warmup", "beta1"};
  EXPECT_EQ(nearest("lr", keys), "learning_rate");
  EXPECT_EQ(nearest("rate", keys), "learning_rate");
  EXPECT_EQ(nearest("warmup_ratio", keys), "warmup");
  EXPECT_EQ(nearest("max_steps", keys), "steps");
  const std::vector<std::string> others = {"rope_theta", "rms_norm_eps", "vocab_size"};
  EXPECT_EQ(did_you_mean("rms_eps", others), ": did you mean rms_norm_eps?");
  EXPECT_EQ(did_you_mean("eps_rms", others), "") << "not in this order";
}

TEST(DidYouMean, NamesWhatMayBeMeant) {
  const std::vector<std::string> known = {"out", "recipe", "watch", "block_attn_res"};
  EXPECT_EQ(did_you_mean("recipes", known), ": did you mean recipe?");
  EXPECT_EQ(did_you_mean("blockattnres", known), ": did you mean block_attn_res?");
  for (const char* far : {"set", "dry-run", "nosuch", "magic", ""}) {
    EXPECT_EQ(did_you_mean(far, known), "") << far;
  }
  EXPECT_EQ(did_you_mean("out", {}), "");
  EXPECT_EQ(did_you_mean("block_attn", known), ": did you mean block_attn_res?");
  EXPECT_EQ(did_you_mean("blok", known), ": did you mean block_attn_res?");
  EXPECT_EQ(did_you_mean("bar", known), ": did you mean block_attn_res?");
}

}  // namespace
}  // namespace attnres::nearest_test
