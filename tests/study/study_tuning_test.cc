#include "attnres/study/study_tuning.h"

#include <gmock/gmock.h>

#include <cmath>

#include "attnres/study/study_folder.h"
#include "attnres/study/study_results.h"
#include "attnres/support/error.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_tuning_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Residual and block at two widths, and rates that are tried for both.
Json tuned_study() {
  Json study = tiny_study();
  study["axes"]["width"] = {{"w32", {{"model.width", 32}}}, {"w64", {{"model.width", 64}}}};
  study["seeds"] = 1;
  study["tune"] = {{"key", "train.learning_rate"},
                   {"values", {0.003, 0.001, 0.009}},
                   {"axis", "mixing"},
                   {"arm", "residual"},
                   {"set", {{"train.steps", 3}}}};
  return study;
}

StudyRecipe read(const Json& study) {
  return read_study(write_study(fresh_folder("study") / "s.json", study));
}

// Trials of these arms, in the order of the values.
void add(TrialLosses& losses, const std::string& arms, std::vector<double> values) {
  const char* names[] = {"0.001", "0.003", "0.009"};
  for (size_t i = 0; i < values.size(); ++i) {
    losses["trial-" + arms + "-" + names[i]] = values[i];
  }
}

const StudyRun& find(const std::vector<StudyRun>& runs, const std::string& name) {
  for (const StudyRun& run : runs) {
    if (run.name == name) return run;
  }
  throw Error("no run " + name);
}

std::vector<std::string> names_of_grid(const std::vector<StudyRun>& runs) {
  std::vector<std::string> names;
  for (const StudyRun& run : runs) {
    if (!run.is_trial) names.push_back(run.name);
  }
  return names;
}

TEST(StudyTuning, TriesEveryValueInEveryCombination) {
  const auto runs = plan_runs(read(tuned_study()));
  const StudyRun& first = runs.at(0);
  EXPECT_EQ(first.name, "trial-residual-w32-0.001");
  EXPECT_TRUE(first.is_trial);
  EXPECT_EQ(first.recipe.train.steps, 3);
  EXPECT_EQ(first.recipe.train.seed, 1);
  EXPECT_EQ(first.recipe.train.learning_rate, 0.001);
  const StudyRun& last = runs.at(11);
  EXPECT_EQ(last.name, "trial-block-w64-0.009");
  EXPECT_EQ(last.recipe.model.width, 64);
  EXPECT_EQ(last.recipe.train.learning_rate, 0.009);
  EXPECT_THAT(names_of_grid(runs),
              ElementsAre("residual-w32-common-seed1", "residual-w64-common-seed1",
                          "block-w32-common-seed1", "block-w32-own-seed1", "block-w64-common-seed1",
                          "block-w64-own-seed1"));
  for (const StudyRun& run : runs) EXPECT_EQ(run.waits, !run.is_trial);
  EXPECT_THAT(find(runs, "block-w64-common-seed1").needs,
              ElementsAre("trial-residual-w64-0.001", "trial-residual-w64-0.003",
                          "trial-residual-w64-0.009"));
  EXPECT_THAT(find(runs, "block-w64-own-seed1").needs, SizeIs(6));
}

// At w32 block's own rate is another, at w64 the same; there is nothing left of w64's trials.
TEST(StudyTuning, ChoosesTheBestOfTheBaselineAndOfEach) {
  const StudyRecipe study = read(tuned_study());
  TrialLosses losses;
  add(losses, "residual-w32", {2.0, 1.5, 1.6});
  add(losses, "block-w32", {1.9, 1.4, 1.3});
  add(losses, "residual-w64", {2.0, 1.5, INFINITY});
  const auto partly = plan_runs(study, {}, losses);
  EXPECT_EQ(find(partly, "residual-w32-common-seed1").recipe.train.learning_rate, 0.003);
  EXPECT_EQ(find(partly, "block-w32-common-seed1").recipe.train.learning_rate, 0.003);
  EXPECT_EQ(find(partly, "block-w32-own-seed1").recipe.train.learning_rate, 0.009);
  EXPECT_FALSE(find(partly, "block-w64-common-seed1").waits);
  EXPECT_TRUE(find(partly, "block-w64-own-seed1").waits);

  add(losses, "block-w64", {2.0, 1.4, INFINITY});
  const auto runs = plan_runs(study, {}, losses);
  EXPECT_THAT(
      names_of_grid(runs),
      ElementsAre("residual-w32-common-seed1", "residual-w64-common-seed1",
                  "block-w32-common-seed1", "block-w32-own-seed1", "block-w64-common-seed1"));
  for (const StudyRun& run : runs) EXPECT_FALSE(run.waits) << run.name;
  const Json json = tuning_json(study, /*smoke=*/false, losses);
  EXPECT_EQ(json.at("key"), "train.learning_rate");
  EXPECT_EQ(json.at("values"), Json({0.001, 0.003, 0.009}));
  EXPECT_EQ(json.at("trials").size(), 12u);
  EXPECT_EQ(json.at("trials").at(2), Json({{"arms", {{"mixing", "residual"}, {"width", "w32"}}},
                                           {"value", 0.009},
                                           {"final_val_loss", 1.6}}));
  EXPECT_TRUE(json.at("trials").at(5).at("final_val_loss").is_null());  // diverged
  const Json w32 = {
      {"arms", {{"mixing", "block"}, {"width", "w32"}}}, {"common", 0.003}, {"own", 0.009}};
  EXPECT_EQ(json.at("chosen").at(2), w32);
  EXPECT_EQ(json.at("chosen").at(3).at("own"), 0.003);
  EXPECT_THAT(tuning_notes(study, /*smoke=*/false, losses),
              ElementsAre(HasSubstr("block-w32: the best train.learning_rate is 0.009, at the end "
                                    "of those tried")));
}

TEST(StudyTuning, ArmsWhoseTrialsAllDivergeHaveAnObstacle) {
  TrialLosses losses;
  add(losses, "residual-w32", {2.0, 1.5, 1.6});
  add(losses, "block-w32", {INFINITY, INFINITY, INFINITY});
  const auto runs = plan_runs(read(tuned_study()), {}, losses);
  EXPECT_EQ(find(runs, "block-w32-common-seed1").obstacle, "");
  EXPECT_THAT(find(runs, "block-w32-own-seed1").obstacle, HasSubstr("diverged"));
  const auto status = look_at_run({"nowhere"}, find(runs, "block-w32-own-seed1"));
  EXPECT_EQ(status.state, RunState::failed);
  EXPECT_THAT(status.error, HasSubstr("give tune other values"));
}

TEST(StudyTuning, OwnValuesAndTheAxisMayBeLeftOut) {
  Json study = tuned_study();
  study["tune"]["own"] = false;
  const auto common = plan_runs(read(study));
  EXPECT_THAT(common, SizeIs(6 + 4));  // trials of residual alone
  EXPECT_THAT(names_of_grid(common), ElementsAre("residual-w32-seed1", "residual-w64-seed1",
                                                 "block-w32-seed1", "block-w64-seed1"));
  EXPECT_THAT(read(study).axis_names(), ElementsAre("mixing", "width"));
  study["tune"].erase("axis");
  study["tune"].erase("arm");
  const auto each = plan_runs(read(study));
  EXPECT_THAT(each, SizeIs(12 + 4));
  EXPECT_EQ(find(each, "block-w64-seed1").needs.at(0), "trial-block-w64-0.001");
}

TEST(StudyTuning, SmokeTriesTwoValues) {
  const StudyRecipe study = read(tuned_study());
  EXPECT_THAT(plan_trials(study, /*smoke=*/true), SizeIs(8));
  TrialLosses losses;
  add(losses, "block-w32", {2.0, 1.0});
  EXPECT_THAT(tuning_notes(study, /*smoke=*/true, losses), IsEmpty());
  EXPECT_EQ(own_value(study, {"block", "w32"}, /*smoke=*/true, losses).value, "0.003");
  EXPECT_EQ(plan_runs(study, {.smoke = true})[0].recipe.train.steps, 2);
}

TEST(StudyTuning, TrialsHaveAPlaceInTheTables) {
  const StudyRecipe study = read(tuned_study());
  const auto runs = plan_runs(study);
  const std::vector<RunStatus> statuses(runs.size());
  const std::vector<RunPlan> plans(runs.size());
  const StudyRecord record =
      with_runs({.name = "s", .axes = study.axis_names()}, runs, statuses, plans);
  EXPECT_THAT(runs_csv(record), HasSubstr("name,mixing,width,rate,seed,role,state"));
  EXPECT_THAT(runs_csv(record), HasSubstr("\ntrial-block-w64-0.009,block,w64,,1,trial,"));
  EXPECT_THAT(arm_results(record), SizeIs(6));
  const Json json = study_json(record);
  EXPECT_EQ(json.at("runs").at(0).at("role"), "trial");
  EXPECT_EQ(json.at("runs").at(12).at("arms").at("rate"), "common");
}

TEST(StudyTuning, RefusesWhatCannotBeTuned) {
  const auto error_of = [](const Json& tune, const Json& more = Json::object()) {
    Json study = tuned_study();
    study["tune"].update(tune);
    study.update(more);
    return message_of<UsageError>([&] { plan_runs(read(study)); });
  };
  EXPECT_THAT(error_of({{"values", {0.1}}}), HasSubstr("two different numbers"));
  EXPECT_THAT(error_of({{"values", {0.1, 0.1}}}), HasSubstr("two different numbers"));
  EXPECT_THAT(error_of({{"values", {"a", "b"}}}), HasSubstr("a list of numbers"));
  EXPECT_THAT(error_of({{"values", {0.1, 100}}}), HasSubstr("run trial-residual-w32-100"));
  EXPECT_THAT(error_of({{"key", "train.learning_rat"}}), HasSubstr("train.learning_rate"));
  EXPECT_THAT(error_of({{"key", "model.width"}}), HasSubstr("model.width is set by axes.width"));
  EXPECT_THAT(error_of({{"key", "train.seed"}}), HasSubstr("belongs to the grid"));
  EXPECT_THAT(error_of({{"axis", "mixin"}}), HasSubstr("the nearest is mixing"));
  EXPECT_THAT(error_of({{"arm", "blok"}}), HasSubstr("the nearest is block"));
  EXPECT_THAT(error_of({{"arm", ""}}), HasSubstr("give both or neither"));
  EXPECT_THAT(error_of({{"valuez", 3}}), HasSubstr("tune.valuez"));
  EXPECT_THAT(error_of({{"set", {{"train.learning_rate", 1}}}}), HasSubstr("is what is tuned"));
  Json axes = tuned_study()["axes"];
  axes["rate"] = {{"x", {{"train.clip", 1}}}};
  EXPECT_THAT(error_of(Json::object(), {{"axes", axes}}),
              HasSubstr("tune adds an axis of that name"));
  axes = tuned_study()["axes"];
  axes["mixing"]["block"]["from"] = "residual";
  EXPECT_THAT(error_of(Json::object(), {{"axes", axes}}),
              HasSubstr("begins with the weights of another run"));
  EXPECT_THAT(message_of<UsageError>([&] {
                plan_runs(read(tuned_study()), {.overrides = {"train.learning_rate=1"}});
              }),
              HasSubstr("the study tunes train.learning_rate"));
}

}  // namespace
}  // namespace attnres::testing::study_tuning_test
