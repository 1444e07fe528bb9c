#include "attnres/study/study_data.h"

#include <gmock/gmock.h>

#include "attnres/study/axis_arms.h"
#include "attnres/support/error.h"
#include "tests/study/planted_study.h"

namespace attnres::testing::study_data_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

StudyArms compared(const Json& study) {
  return compare_study(parse_study_json(study, "study.json"));
}

TEST(CompareStudy, ComparesWithinEqualOtherAxes) {
  const Json study = planted_study(1.25);
  const StudyArms arms = compared(study);
  ASSERT_EQ(arms.arms.size(), 10u);
  EXPECT_EQ(arms.baseline_axis, "mixing");
  for (size_t i = 0; i < arms.arms.size(); ++i) {
    ASSERT_TRUE(arms.baselines[i]);
    EXPECT_THAT(arms.names[*arms.baselines[i]], ElementsAre("residual", arms.names[i][1]));
  }
  // By hand, of the first size.
  std::vector<double> differences;
  for (const size_t first : {0, 10, 20}) {
    const auto loss = [&](size_t run) {
      return study["runs"][run]["final_val_loss"].get<double>();
    };
    differences.push_back(loss(first + 1) - loss(first));
  }
  const ArmDifference& difference = arms.arms[1].difference;
  const PairedTest test = paired_t_test(differences);
  EXPECT_DOUBLE_EQ(difference.mean, test.mean);
  EXPECT_DOUBLE_EQ(difference.test->interval.low, test.interval.low);
  EXPECT_GT(difference.p_value, test.p_value) << "corrected for five arms";
  EXPECT_LE(difference.p_value, 5 * test.p_value * (1 + 1e-12));
  EXPECT_EQ(difference.verdict, "better");
  EXPECT_EQ(arms.arms[0].difference.verdict, "baseline");
}

TEST(CompareStudy, LeavesOutTrialsAndWhatIsNotDone) {
  Json study = planted_study(1.25);
  study["runs"][1]["state"] = "unfinished";
  study["runs"][11]["role"] = "trial";
  const StudyArms arms = compared(study);
  EXPECT_EQ(arms.arms[1].difference.pairs, 1u);
  EXPECT_EQ(arms.arms[1].difference.verdict, "one seed cannot tell");
  EXPECT_EQ(arms.arms[3].difference.pairs, 3u);
}

// Each arm of one axis with another of the other: no grid, and a square of places.
TEST(ArmsAlong, RefusesWhatIsNoGrid) {
  const auto study = [](int arms) {
    Json json = {{"study", "s"}, {"axes", {"a", "b"}}, {"runs", Json::array()}};
    for (int i = 0; i < arms; ++i) {
      const std::string name = std::to_string(i);
      json["runs"].push_back({{"name", name}, {"arms", {{"a", name}, {"b", name}}}});
    }
    StudyData data;
    data.study = parse_study_json(json, "study.json");
    data.arms = compare_study(data.study);
    return data;
  };
  const AxisArms few = arms_along(study(3), 0);
  EXPECT_EQ(few.names.size(), 3u);
  EXPECT_EQ(few.series.at(1).arms, (std::vector<std::optional<size_t>>{{}, 1, {}}));
  EXPECT_THAT([&] { arms_along(study(400), 0); },
              ThrowsMessage<Error>(HasSubstr("400 arms of an axis")));
}

TEST(CompareStudy, TakesResidualWhereNoBaselineIsNamed) {
  Json study = planted_study(1.25);
  study.erase("baseline");
  EXPECT_EQ(compared(study).baseline_axis, "mixing");
  for (Json& run : study["runs"]) {
    if (run["arms"]["mixing"] == "residual") run["arms"]["mixing"] = "other";
  }
  const StudyArms arms = compared(study);
  EXPECT_EQ(arms.baseline_axis, "");
  EXPECT_EQ(arms.baselines[1], std::nullopt);
  EXPECT_EQ(arms.arms[1].difference.verdict, "");
}

// An arm whose own rate is the common one has no run of its own.
TEST(CompareStudy, OwnRatesAreComparedWithTheBaselinesOwn) {
  Json study = planted_study(1.25);
  study["axes"].push_back("rate");
  for (Json& run : study["runs"]) {
    run["arms"]["rate"] = run["arms"]["mixing"] == "residual" ? "common" : "own";
  }
  EXPECT_EQ(compared(study).baselines[1], std::nullopt) << "nothing was tuned";
  study["tuning"] = {{"key", "train.learning_rate"}};
  EXPECT_EQ(compared(study).baselines[1], 0u);
}

}  // namespace
}  // namespace attnres::testing::study_data_test
