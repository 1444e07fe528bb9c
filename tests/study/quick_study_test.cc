#include "attnres/study/quick_study.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "attnres/depth/mechanism.h"
#include "attnres/study/study_grid.h"
#include "attnres/support/error.h"
#include "attnres/support/file.h"
#include "tests/text/test_files.h"

namespace attnres::quick_study_test {
namespace {

using ::testing::HasSubstr;

constexpr MachineSpeed kSpeed = {.matmul = 1e11, .copy = 2e10};
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

// What the runs take is what their estimates say, with a margin for evaluation.
TEST(QuickStudy, TellsTheTimeOfAllRuns) {
  const QuickAims all = aims(7200);
  const QuickChoice choice = choose_quick_study(all, kSpeed);
  const StudyRecipe study = quick_study(choice.base, all.mechanisms, all.seeds);
  double seconds = 0;
  for (const StudyRun& run : plan_runs(study)) {
    EXPECT_EQ(run.recipe.train.steps, choice.steps);
    seconds += estimate(run.recipe, run.recipe.tokenizer.vocab_size, kSpeed).seconds_per_step *
               static_cast<double>(choice.steps);
  }
  EXPECT_GT(choice.seconds, 1.1 * seconds);
  EXPECT_LT(choice.seconds, 1.6 * seconds);
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
