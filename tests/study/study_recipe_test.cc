#include "attnres/study/study_recipe.h"

#include <gmock/gmock.h>

#include "attnres/support/error.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_recipe_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<StudyRun> runs_of(const Json& study, const GridOptions& options = {}) {
  return plan_runs(read_study(write_study(fresh_folder("study") / "s.json", study)), options);
}

std::vector<std::string> names_of(const std::vector<StudyRun>& runs) {
  std::vector<std::string> names;
  for (const StudyRun& run : runs) names.push_back(run.name);
  return names;
}

std::string error_of(const Json& study, const GridOptions& options = {}) {
  return message_of<UsageError>([&] { runs_of(study, options); });
}

TEST(StudyRecipe, EveryCombinationIsARunSeedBySeed) {
  Json study = tiny_study();
  study["axes"]["width"] = {{"w32", {{"model.width", 32}}}, {"w64", {{"model.width", 64}}}};
  const std::vector<StudyRun> runs = runs_of(study);
  EXPECT_THAT(names_of(runs),
              ElementsAre("residual-w32-seed1", "residual-w64-seed1", "block-w32-seed1",
                          "block-w64-seed1", "residual-w32-seed2", "residual-w64-seed2",
                          "block-w32-seed2", "block-w64-seed2"));
  const StudyRun& run = runs[7];
  EXPECT_THAT(run.arms, ElementsAre("block", "w64"));
  EXPECT_EQ(run.recipe.name, run.name);
  EXPECT_EQ(run.recipe.model.width, 64);
  EXPECT_EQ(run.recipe.train.seed, 2);
  EXPECT_EQ(run.recipe.train.steps, 6);
  EXPECT_EQ(run.recipe.model.depth_mixing.to_json()["type"], "block_attn_res");
  EXPECT_EQ(runs[0].recipe.model.depth_mixing.to_json()["type"], "residual");
}

TEST(StudyRecipe, OptionsHoldForEveryRun) {
  for (const StudyRun& run : runs_of(tiny_study(), {.smoke = true})) {
    EXPECT_EQ(run.recipe.train.steps, 2);
  }
  const auto runs = runs_of(tiny_study(), {.overrides = {"train.steps=9"}, .seeds = 1});
  EXPECT_THAT(names_of(runs), ElementsAre("residual-seed1", "block-seed1"));
  for (const StudyRun& run : runs) EXPECT_EQ(run.recipe.train.steps, 9);
}

TEST(StudyRecipe, BaseMayBeAFileBeside) {
  const fs::path folder = fresh_folder("study");
  Json study = tiny_study();
  attnres::write_text(folder / "base.json", study["base"].dump());
  study["base"] = "../base.json";
  const StudyRecipe read = read_study(write_study(folder / "studies" / "s.json", study));
  EXPECT_EQ(plan_runs(read)[0].recipe.train.batch_size, 4);
  study["base"] = "nowhere.json";
  EXPECT_THAT(message_of<Error>([&] { read_study(write_study(folder / "s.json", study)); }),
              HasSubstr("nowhere.json"));
}

TEST(StudyRecipe, ComesWithTheProgram) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator(ATTNRES_SOURCE_DIR "/recipes/studies")) {
    SCOPED_TRACE(entry.path());
    const StudyRecipe study = read_study(entry.path());
    EXPECT_EQ(study.name, entry.path().stem());
    EXPECT_EQ(study.question.find("..."), std::string::npos);
    const size_t runs = plan_runs(study).size();
    EXPECT_GE(runs, 3u);
    EXPECT_EQ(plan_runs(study, {.smoke = true}).size(), runs);
    ++count;
  }
  EXPECT_GE(count, 3);
}

TEST(StudyRecipe, RefusesAnEmptyGrid) {
  Json study = tiny_study();
  study["axes"] = Json::object();
  EXPECT_THAT(error_of(study), AllOf(HasSubstr("s.json"), HasSubstr("this grid is empty")));
  study["axes"]["mixing"] = Json::object();
  EXPECT_THAT(error_of(study), HasSubstr("axes.mixing: an axis without arms"));
  study = tiny_study();
  study["seeds"] = 0;
  EXPECT_THAT(error_of(study), HasSubstr("seeds: expected 1 to 10000, got 0"));
  study["seeds"] = 5001;
  EXPECT_THAT(error_of(study), HasSubstr("more than 10000 runs"));
}

TEST(StudyRecipe, RefusesUnknownKeys) {
  Json study = tiny_study();
  study["axis"] = 1;
  EXPECT_THAT(error_of(study), HasSubstr("unknown key axis: the nearest known key is axes"));
  study = tiny_study();
  study["axes"]["mixing"]["block"]["train.stepz"] = 3;
  EXPECT_THAT(error_of(study), AllOf(HasSubstr("run block-seed1"), HasSubstr("train.steps")));
  EXPECT_THAT(error_of(tiny_study(), {.overrides = {"train.stepz=3"}}), HasSubstr("train.steps"));
  study = tiny_study();
  study.erase("question");
  EXPECT_THAT(error_of(study), HasSubstr("it has no \"question\""));
}

TEST(StudyRecipe, RefusesRunsThatCannotBeToldApart) {
  Json study = tiny_study();
  study["axes"] = {{"a", {{"x", {{"train.beta1", 0.8}}}, {"x-y", {{"train.beta1", 0.7}}}}},
                   {"b", {{"y-z", {{"train.clip", 1}}}, {"z", {{"train.clip", 2}}}}}};
  EXPECT_THAT(error_of(study), HasSubstr("two runs are named x-y-z-seed1"));
  study = tiny_study();
  study["axes"]["mixing"]["same"] = study["axes"]["mixing"]["block"];
  EXPECT_THAT(error_of(study),
              HasSubstr("the runs block-seed1 and same-seed1 have the same recipe"));
  for (const char* name : {"", "a/b", "..", "-a", "a b"}) {
    study = tiny_study();
    study["axes"]["mixing"][name] = {{"train.steps", 3}};
    EXPECT_THAT(error_of(study), HasSubstr("cannot be part of a file's name")) << name;
  }
}

TEST(StudyRecipe, RefusesWhatWouldUndoAnArm) {
  Json study = tiny_study();
  study["axes"]["size"] = {{"s", {{"model.depth_mixing.block_size", 1}}}};
  EXPECT_THAT(error_of(study), HasSubstr("axes.mixing and axes.size both set"));
  study = tiny_study();
  study["smoke"]["model.depth_mixing.type"] = "residual";
  EXPECT_THAT(error_of(study), HasSubstr("smoke: model.depth_mixing.type is set by axes.mixing"));
  EXPECT_THAT(error_of(tiny_study(), {.overrides = {"model.depth_mixing.type=mhc"}}),
              HasSubstr("the axis mixing sets model.depth_mixing.type"));
  EXPECT_THAT(error_of(tiny_study(), {.overrides = {"train.seed=4"}}), HasSubstr("use --seeds"));
  study = tiny_study();
  study["axes"]["mixing"]["block"]["train.seed"] = 3;
  EXPECT_THAT(error_of(study), HasSubstr("train.seed is set by \"seeds\""));
}

}  // namespace
}  // namespace attnres::testing::study_recipe_test
