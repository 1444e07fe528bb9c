#include "attnres/study/quick_study.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "attnres/depth/mechanism.h"
#include "attnres/study/study_grid.h"
#include "attnres/study/study_tuning.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::quick_study_test {
namespace {

using ::testing::HasSubstr;

const QuickSpeeds kSpeed = {.matmul = 1e11, .copy = 2e10, .mixing = {}};
constexpr int64_t kLongText = 1'000'000'000;

QuickAims aims(double seconds, int64_t text_tokens = kLongText) {
  return {.mechanisms = {"residual", "block_attn_res"},
          .seeds = 3,
          .seconds = seconds,
          .text_tokens = text_tokens};
}

int64_t width_of(const QuickChoice& choice) {
  return choice.base["model"]["width"];
}

double tokens_a_parameter(const QuickChoice& choice) {
  return static_cast<double>(choice.tokens) / static_cast<double>(choice.parameters);
}

TEST(QuickStudy, FillsTheTimeWithTheLargestModelThatIsTrainedEnough) {
  int64_t width = 0;
  for (const double hours : {0.5, 2.0, 16.0}) {
    SCOPED_TRACE(hours);
    const QuickChoice choice = choose_quick_study(aims(3600 * hours), kSpeed);
    EXPECT_GT(width_of(choice), width);
    width = width_of(choice);
    EXPECT_NEAR(tokens_a_parameter(choice), 20, 0.2);
    EXPECT_LE(choice.seconds, 3600 * hours);
    EXPECT_GT(choice.seconds, 3600 * hours / 12);
    EXPECT_THAT(choice.why, HasSubstr("give it more --hours"));
    // Twice as many runs, or half the speed, take twice as long.
    QuickAims more = aims(3600 * hours);
    more.seeds *= 2;
    EXPECT_LE(width_of(choose_quick_study(more, kSpeed)), width);
    more.jobs = 2;
    EXPECT_EQ(choose_quick_study(more, kSpeed).base, choice.base);
  }
}

// One total: what it chooses by is what the plan of the runs says.
TEST(QuickStudy, TellsTheTimeOfAllRunsAsTheirPlanDoes) {
  QuickSpeeds speeds = kSpeed;
  speeds.mixing = {{"residual", 9e9}, {"block_attn_res", 7e9}};
  for (const bool tune : {false, true}) {
    for (const int64_t jobs : {1, 2}) {
      SCOPED_TRACE(fmt::format("tune {}, {} jobs", tune, jobs));
      QuickAims all = aims(7200);
      all.tune = tune;
      all.jobs = jobs;
      const QuickChoice choice = choose_quick_study(all, speeds);
      const StudyRecipe study = quick_study(choice.base, all.mechanisms, all.seeds, tune);
      const std::vector<StudyRun> runs = plan_runs(study);
      EXPECT_EQ(runs.size(), tune ? 6u + 8u : 6u);
      double seconds = 0;
      for (const RunPlan& plan : plan_costs(runs, speeds.speed_of())) {
        seconds += plan.seconds / static_cast<double>(jobs);
      }
      EXPECT_NEAR(choice.seconds, seconds, 1e-9 * seconds);
      EXPECT_LE(choice.seconds, all.seconds);
    }
  }
}

// What costs more is told so, and leaves time for less.
TEST(QuickStudy, KnowsWhatAMechanismCosts) {
  const auto seconds = [](const char* mechanism, double mixing) {
    QuickAims alone = aims(1e6, 5'000'000);
    alone.mechanisms = {mechanism};
    QuickSpeeds speeds = kSpeed;
    speeds.mixing[mechanism] = mixing;
    return choose_quick_study(alone, speeds).seconds;
  };
  const double residual = seconds("residual", 8e9);
  EXPECT_GT(seconds("block_attn_res", 8e9), residual);
  EXPECT_GT(seconds("attn_res", 8e9), residual);
  EXPECT_GT(seconds("dca", 8e9), 1.5 * residual);
  EXPECT_GT(seconds("block_attn_res", 4e9), seconds("block_attn_res", 8e9));
  EXPECT_GT(seconds("block_attn_res", 0), residual);  // not measured
}

TEST(QuickStudy, ReadsAShortTextAFewTimesAtMost) {
  const int64_t text = 1'000'000;
  const QuickChoice choice = choose_quick_study(aims(1e6, text), kSpeed);
  EXPECT_LE(choice.tokens, 4 * text);
  EXPECT_GE(tokens_a_parameter(choice), 10);
  EXPECT_LT(width_of(choice), width_of(choose_quick_study(aims(1e6), kSpeed)));
  EXPECT_THAT(choice.why, HasSubstr("fewer than 10 tokens a parameter in 4 passes"));
}

TEST(QuickStudy, SaysWhereTextOrTimeAreShort) {
  const QuickChoice short_text = choose_quick_study(aims(1e6, 100'000), kSpeed);
  EXPECT_EQ(width_of(short_text), 32);
  EXPECT_LE(short_text.tokens, 400'000);
  EXPECT_THAT(short_text.why, HasSubstr("There is text for"));

  const double least = choose_quick_study(aims(1e6, 100'000), kSpeed).seconds;
  const QuickChoice short_time = choose_quick_study(aims(least), kSpeed);
  EXPECT_EQ(width_of(short_time), 32);
  EXPECT_LT(tokens_a_parameter(short_time), 15);
  EXPECT_THAT(short_time.why, HasSubstr("There is time for"));

  EXPECT_THAT(message_of<Error>([] { choose_quick_study(aims(1), kSpeed); }),
              HasSubstr("the shortest comparison of 6 runs takes about"));
  EXPECT_THAT(message_of<Error>([] { choose_quick_study(aims(1e6, 1000), kSpeed); }),
              HasSubstr("--data: a text of 1000 B is too short"));
}

TEST(QuickStudy, TakesEveryMechanism) {
  const std::vector<std::string> names = mechanism_names();
  require_mechanisms(names);
  const QuickChoice choice = choose_quick_study(aims(3600), kSpeed);
  const std::vector<StudyRun> runs = plan_runs(quick_study(choice.base, names, 1));
  ASSERT_EQ(runs.size(), names.size());
  for (size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].recipe.model.depth_mixing.name(), names[i]);
    EXPECT_EQ(runs[i].name, names[i] + "-seed1");
  }
}

TEST(QuickStudy, IsAStudysFile) {
  const QuickChoice choice = choose_quick_study(aims(3600), kSpeed);
  const StudyRecipe study = quick_study(choice.base, {"lime", "residual"}, 2);
  EXPECT_EQ(study.question, "Which of lime and residual ends with the lowest validation loss?");
  const auto file = fresh_folder("quick") / "compare.json";
  write_file(file, quick_study_json(study).dump());
  const StudyRecipe read = read_study(file);
  EXPECT_EQ(quick_study_json(read), quick_study_json(study));
  EXPECT_EQ(mechanisms_of(read), (std::vector<std::string>{"lime", "residual"}));
  EXPECT_EQ(read.baseline[0].second, "residual");
  for (const bool smoke : {false, true}) {
    const GridOptions options = {.seeds = 2, .smoke = smoke};
    const std::vector<StudyRun> ours = plan_runs(study, options), theirs = plan_runs(read, options);
    ASSERT_EQ(ours.size(), 4u);
    for (size_t i = 0; i < ours.size(); ++i) {
      EXPECT_EQ(recipe_to_json(ours[i].recipe), recipe_to_json(theirs[i].recipe));
    }
  }
}

TEST(QuickStudy, TunesEachMechanismByItself) {
  const QuickChoice choice = choose_quick_study(aims(3600), kSpeed);
  const int64_t width = width_of(choice);
  const StudyRecipe study = quick_study(choice.base, {"residual", "lime"}, 2, /*tune=*/true);
  ASSERT_TRUE(study.tune.has_value());
  EXPECT_FALSE(study.tune->has_rate_axis());
  const std::vector<double> rates = quick_rates_tried(width);
  EXPECT_EQ(rates.size(), 4u);
  TrialLosses losses;
  for (const StudyRun& run : plan_runs(study)) {
    if (!run.is_trial) continue;
    EXPECT_EQ(run.recipe.train.steps, choice.steps / 4);
    const bool is_best =
        run.recipe.train.learning_rate == (run.arms[0] == "lime" ? rates[1] : rates[3]);
    losses[run.name] = is_best ? 2.0 : 2.5;
  }
  EXPECT_EQ(losses.size(), 8u);
  for (const StudyRun& run : plan_runs(study, {}, losses)) {
    if (run.is_trial) continue;
    EXPECT_EQ(run.recipe.train.learning_rate, run.arms[0] == "lime" ? rates[1] : rates[3])
        << run.name;
  }
  const auto file = fresh_folder("quick-tuned") / "compare.json";
  write_file(file, quick_study_json(study).dump());
  EXPECT_EQ(quick_study_json(read_study(file)), quick_study_json(study));
}

// What stands in a file that others have changed.
TEST(QuickStudy, ReadsItsNotesAsFarAsTheyAreSome) {
  StudyRecipe study = quick_study(choose_quick_study(aims(3600), kSpeed).base, {"residual"}, 1);
  study.chosen =
      R"({"for":{"seconds":60},"speeds":{"matmul":1e9,"copy":2e9,"mixing":{"residual":3,"a":"b"}},)"
      R"("sentences":["One.",2]})";
  const QuickNotes notes = read_quick_notes(study);
  EXPECT_EQ(notes.reasons, (Json{{"seconds", 60}}));
  EXPECT_EQ(notes.sentences, std::vector<std::string>{"One."});
  ASSERT_TRUE(notes.speeds);
  EXPECT_EQ(notes.speeds->copy, 2e9);
  EXPECT_EQ(notes.speeds->mixing, (std::map<std::string, double>{{"residual", 3}}));
  for (const char* other : {"null", "[]", "7", R"({"speeds":3})", R"({"speeds":{"matmul":1e9}})",
                            R"({"speeds":{"matmul":"fast","copy":1}})",
                            R"({"speeds":{"matmul":0,"copy":1}})", R"({"sentences":{"a":1}})"}) {
    study.chosen = other;
    EXPECT_FALSE(read_quick_notes(study).speeds) << other;
    EXPECT_TRUE(read_quick_notes(study).sentences.empty()) << other;
  }
}

TEST(QuickStudy, IsNoOtherStudy) {
  const StudyRecipe study =
      quick_study(choose_quick_study(aims(3600), kSpeed).base, {"residual", "lime"}, 1);
  StudyRecipe other = study;
  other.baseline.clear();
  EXPECT_THAT(message_of<Error>([&] { mechanisms_of(other); }), HasSubstr("not one that compare"));
  other = study;
  other.axes.push_back({"size", {{.name = "s", .overrides = {}}}});
  EXPECT_THAT(message_of<Error>([&] { mechanisms_of(other); }), HasSubstr("not one that compare"));
  // A recipe that leaves out what has a default, and one that is none.
  EXPECT_TRUE(quick_study(Json::object(), {"residual"}, 1, /*tune=*/true).tune);
  EXPECT_THAT(message_of<UsageError>([] {
                quick_study({{"train", 3}}, {"residual"}, 1, /*tune=*/true);
              }),
              HasSubstr("train"));
}

// By the formula that docs/studies.md gives.
TEST(QuickStudy, HasTheLearningRateThatItSays) {
  for (const int64_t width : {32, 128, 512}) {
    EXPECT_NEAR(quick_rate(width), 0.003 * std::sqrt(128.0 / static_cast<double>(width)), 1e-7);
    EXPECT_THAT(quick_rate_sentence(width, false),
                HasSubstr(fmt::format("0.003 sqrt(128 / width) = {:g}", quick_rate(width))));
  }
  EXPECT_EQ(quick_rates_tried(128), (std::vector<double>{0.00075, 0.0015, 0.003, 0.006}));
  EXPECT_THAT(quick_rate_sentence(128, true), HasSubstr("one of 0.00075, 0.0015, 0.003, 0.006"));
}

TEST(QuickStudy, RefusesWhatIsNoMechanism) {
  const auto refused = [](const std::vector<std::string>& names) {
    return message_of<UsageError>([&] { require_mechanisms(names); });
  };
  EXPECT_THAT(refused({"residual", "block_attn_rse"}), HasSubstr("did you mean block_attn_res?"));
  EXPECT_THAT(refused({"residual", "residual"}), HasSubstr("residual is named twice"));
  EXPECT_THAT(refused({}), HasSubstr("name at least one"));
}

}  // namespace
}  // namespace attnres::quick_study_test
