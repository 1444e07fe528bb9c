#include "attnres/plan/prefill.h"

#include <gtest/gtest.h>

#include "attnres/support/error.h"
#include "tests/plan/small_plans.h"

namespace attnres::testing::prefill_test {
namespace {

// A model of width 7168 and L = 16, in bfloat16.
PlannedModel wide_model(const Json& depth_mixing) {
  Json recipe = {
      {"model", {{"layers", 8}, {"width", 7168}, {"heads", 56}, {"depth_mixing", depth_mixing}}},
      {"train", {{"precision", "bfloat16"}}}};
  return PlannedModel(parse_recipe(recipe));
}

// Section 4.2 of arXiv 2603.15031: "15 GB of memory for a 128K-token sequence with 8 blocks";
// "roughly 1.9 GB per device" on 8; with chunks of 16K "under 0.3 GB per device".
TEST(Prefill, IsThatOfTheReport) {
  const PlannedModel model = wide_model(blocks_of(2));
  const PrefillMemory memory = plan_prefill(model, 131072, 16384, 8);
  EXPECT_EQ(memory.representations, 8);
  EXPECT_EQ(memory.whole, 8.0 * 131072 * 7168 * 2);
  EXPECT_NEAR(memory.whole, 15e9, 0.05e9);
  EXPECT_NEAR(memory.per_device, 1.9e9, 0.05e9);
  EXPECT_LT(memory.per_device_chunked, 0.3e9);
  EXPECT_GT(memory.per_device_chunked, 0.2e9);
}

TEST(Prefill, FollowsItsSizes) {
  const PlannedModel model = wide_model(blocks_of(4));
  const PrefillMemory whole = plan_prefill(model, 1000, 0, 1);
  EXPECT_EQ(whole.representations, 4);
  EXPECT_EQ(whole.chunk, 1000);
  EXPECT_EQ(whole.per_device, whole.whole);
  EXPECT_EQ(whole.per_device_chunked, whole.whole);
  // The device that has one token more.
  EXPECT_EQ(plan_prefill(model, 1001, 0, 2).per_device, 501 * 4 * 7168 * 2.0);
  EXPECT_EQ(plan_prefill(model, 1000, 4096, 1).per_device_chunked, whole.whole);
  EXPECT_EQ(plan_prefill(wide_model({{"type", "residual"}}), 1000, 0, 1).whole, 0);
  EXPECT_EQ(plan_prefill(wide_model({{"type", "attn_res"}}), 1000, 0, 1).representations, 16);
  EXPECT_THROW(plan_prefill(model, 0, 0, 1), UsageError);
  EXPECT_THROW(plan_prefill(model, 10, 0, 0), UsageError);
}

}  // namespace
}  // namespace attnres::testing::prefill_test
