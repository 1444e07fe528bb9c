#include "attnres/study/study_record.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/support/error.h"

namespace attnres::testing::study_record_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Every key that is written, with a value that is not its default.
StudyRecord whole_record() {
  return {.name = "s",
          .question = "?",
          .claim = "!",
          .axes = {"mixing", "rate"},
          .baseline = {{"mixing", "residual"}},
          .figures = {Json{{"kind", "forest"}, {"x", "mixing"}}},
          .data = {"/a"},
          .validation = {"/b"},
          .threads = 2,
          .tuning = {{"key", "train.learning_rate"}, {"values", {0.1, 0.2}}},
          .chosen = {{"sentences", {"One.", "Two."}}, {"hours", 1}},
          .smoke = true,
          .runs = {{.name = "trial-residual-0.1",
                    .arms = {"residual", ""},
                    .seed = 1,
                    .is_trial = true,
                    .state = RunState::diverged,
                    .error = "the loss is nan"},
                   {.name = "residual-common-seed2",
                    .arms = {"residual", "common"},
                    .seed = 2,
                    .state = RunState::done,
                    .step = 6,
                    .steps = 7,
                    .parameters = 8,
                    .tokens = 9,
                    .flops = 10.5,
                    .from = "other",
                    .seconds = 11.5,
                    .peak_bytes = 12,
                    .final_val_loss = 2.5,
                    .best_val_loss = 1.5,
                    .best_step = 5}}};
}

TEST(StudyRecord, IsReadAsItIsWritten) {
  const Json json = study_json(whole_record());
  EXPECT_EQ(json.at("runs").at(0).at("arms").dump(), R"({"mixing":"residual"})");
  EXPECT_EQ(json.at("runs").at(1).at("tokens").dump(), "9");
  const StudyRecord read = parse_study_json(json, "study.json");
  EXPECT_EQ(study_json(read).dump(), json.dump());
  EXPECT_EQ(read.runs.at(0).state, RunState::diverged);
  EXPECT_THAT(read.runs.at(0).arms, ElementsAre("residual", ""));
  EXPECT_TRUE(std::isnan(read.runs.at(0).final_val_loss));
  EXPECT_THAT(read.chosen_sentences(), ElementsAre("One.", "Two."));
}

TEST(ParseStudyJson, ReadsOlderFilesAndRefusesOthers) {
  const StudyRecord old = parse_study_json(
      {{"study", "old"}, {"runs", {{{"name", "a-seed1"}, {"state", "done"}}}}}, "study.json");
  EXPECT_TRUE(old.figures.empty());
  EXPECT_TRUE(old.tuning.is_null());
  EXPECT_TRUE(std::isnan(old.runs[0].flops));
  EXPECT_FALSE(old.runs[0].is_trial);
  const auto parse = [](const Json& json) {
    return [json] { parse_study_json(json, "x/study.json"); };
  };
  EXPECT_THAT(parse({{"study", "x"}}),
              ThrowsMessage<Error>(HasSubstr("x/study.json: not a study's")));
  EXPECT_THAT(parse({{"runs", {{{"name", "../../etc"}}}}}),
              ThrowsMessage<Error>(HasSubstr("expected runs with a name each")));
}

}  // namespace
}  // namespace attnres::testing::study_record_test
