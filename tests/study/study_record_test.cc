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
  EXPECT_THAT(parse({{"runs", {{{"name", std::string(256, 'a')}}}}}),
              ThrowsMessage<Error>(HasSubstr("expected runs with a name each")));
  const auto many = [](size_t count, const Json& item) { return Json::array_t(count, item); };
  EXPECT_THAT(parse({{"runs", Json::array()}, {"axes", many(33, "a")}}),
              ThrowsMessage<Error>(HasSubstr("33 axes; a study has 32 at most")));
  EXPECT_THAT(parse({{"runs", Json::array()}, {"figures", many(101, Json::object())}}),
              ThrowsMessage<Error>(HasSubstr("101 figures; a study has 100 at most")));
  EXPECT_THAT(parse({{"runs", many(20'001, {{"name", "a"}})}}),
              ThrowsMessage<Error>(HasSubstr("20001 runs; a study has 20000 at most")));
}

TEST(ParseStudyJson, TakesNoNumberThatWouldOverflow) {
  const Json run = {{"name", "a"},       {"step", INT64_MIN},  {"steps", INT64_MAX},
                    {"tokens", 1e60},    {"seconds", 1e200},   {"final_val_loss", "low"},
                    {"seed", -4},        {"peak_bytes", 1e19}, {"state", 7},
                    {"best_val_loss", 3}};
  const StudyRecord study = parse_study_json({{"threads", INT64_MAX}, {"runs", {run}}}, "x");
  EXPECT_EQ(study.threads, 0);
  const StudyRunRecord& read = study.runs.at(0);
  EXPECT_EQ(read.step, 0);
  EXPECT_EQ(read.steps, 0);
  EXPECT_EQ(read.seed, 0);
  EXPECT_TRUE(std::isnan(read.seconds));
  EXPECT_EQ(read.best_val_loss, 3);
  const Json written = run_json(study, read);
  EXPECT_TRUE(written.at("tokens").is_null());
  EXPECT_TRUE(written.at("peak_bytes").is_null());
}

}  // namespace
}  // namespace attnres::testing::study_record_test
