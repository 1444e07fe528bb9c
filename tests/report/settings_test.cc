#include "attnres/report/settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace attnres {
namespace {

using ::testing::ElementsAre;

TEST(SettingsTable, HasALeafUnderEachDottedKey) {
  SettingsTable table(2);
  table.add(0, "", {{"name", "a"}, {"train", {{"steps", 5}, {"empty", Json::object()}}}});
  table.add(1, "", {{"name", "b"}, {"train", {{"steps", 5}}}});
  table.add(1, "from", {{"name", "c"}});
  EXPECT_THAT(table.keys(), ElementsAre("name", "train.steps", "train.empty", "from.name"));
  EXPECT_EQ(*table.value(0, "train.steps"), "5");
  EXPECT_EQ(table.value(0, "from.name"), nullptr);
  EXPECT_TRUE(table.equal("train.steps"));
  EXPECT_FALSE(table.equal("name"));
  EXPECT_FALSE(table.equal("from.name")) << "only one run has it";
  EXPECT_THAT(table.values("name"), ElementsAre("a", "b"));
  EXPECT_THAT(table.values("train.steps"), ElementsAre("5"));
  EXPECT_THAT(table.values("from.name"), ElementsAre("c"));
}

}  // namespace
}  // namespace attnres
