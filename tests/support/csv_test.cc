#include "attnres/support/csv.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace attnres::csv_test {
namespace {

TEST(Csv, QuotesWhatNeedsIt) {
  EXPECT_EQ(csv_line({"a", 1, 0.5, nullptr, true}), "a,1,0.5,,true\n");
  EXPECT_EQ(csv_line({"a,b", "c \"d\"", "e\nf"}), "\"a,b\",\"c \"\"d\"\"\",\"e\nf\"\n");
}

}  // namespace
}  // namespace attnres::csv_test
