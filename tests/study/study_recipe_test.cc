#include "attnres/study/study_recipe.h"

#include <fmt/core.h>
#include <gmock/gmock.h>

#include "attnres/study/study_grid.h"
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

TEST(StudyRecipe, SmokeIsTheLastWordButForTheUsers) {
  Json study = tiny_study();
  study["axes"]["size"] = {{"s", {{"train.steps", 50}}}};
  const auto runs = runs_of(study, {.smoke = true});
  EXPECT_THAT(names_of(runs), ElementsAre("residual-s-seed1", "block-s-seed1"));  // one seed
  EXPECT_EQ(runs[0].recipe.train.steps, 2);
  EXPECT_EQ(runs_of(study)[0].recipe.train.steps, 50);
  EXPECT_EQ(runs_of(study, {.seeds = 2, .smoke = true}).size(), 4u);
  const auto longer = runs_of(tiny_study(), {.overrides = {"train.steps=9"}, .smoke = true});
  EXPECT_EQ(longer[0].recipe.train.steps, 9);
}

TEST(StudyRecipe, ReadsWhatThePageShows) {
  Json study = tiny_study();
  study["claim"] = "Fig. 1: it runs.";
  study["baseline"] = {{"mixing", "residual"}};
  study["figures"] = {{{"kind", "curve"}, {"x", "mixing"}}};
  study["inspect"] = true;
  const StudyRecipe read = read_study(write_study(fresh_folder("study") / "s.json", study));
  EXPECT_EQ(read.claim, "Fig. 1: it runs.");
  EXPECT_THAT(read.baseline, ElementsAre(std::pair("mixing", "residual")));
  EXPECT_EQ(Json::parse(read.figures), study["figures"]);
  EXPECT_TRUE(read.inspect);
  study["baseline"] = {{"mixin", "residual"}};
  EXPECT_THAT(error_of(study),
              HasSubstr("baseline: there is no axis mixin; the nearest is mixing"));
  study["baseline"] = {{"mixing", "blok"}};
  EXPECT_THAT(error_of(study), HasSubstr("axes.mixing has no arm blok; the nearest is block"));
  study["baseline"] = Json::object();
  study["figures"] = {{{"kind", "curves"}}};
  EXPECT_THAT(error_of(study),
              HasSubstr("figures[0]: unknown kind curves: the nearest known kind"));
  study["figures"] = {{"kind", "curve"}};
  EXPECT_THAT(error_of(study), HasSubstr("figures: expected a list of objects"));
}

// Residual runs, and runs that go on with their weights: as they were, and with Block AttnRes.
Json chained_study() {
  Json study = tiny_study();
  study["axes"]["mixing"] = {
      {"on", {{"from", "residual"}, {"model.depth_mixing", {{"type", "residual"}}}}},
      {"residual", {{"model.depth_mixing", {{"type", "residual"}}}}},
      {"block", {{"from", "on"}, {"model.depth_mixing", {{"type", "block_attn_res"}}}}}};
  return study;
}

TEST(StudyRecipe, AnArmBeginsWithTheWeightsOfAnother) {
  const auto runs = runs_of(chained_study());
  EXPECT_THAT(names_of(runs), ElementsAre("on-seed1", "residual-seed1", "block-seed1", "on-seed2",
                                          "residual-seed2", "block-seed2"));
  EXPECT_EQ(runs[3].from, "residual-seed2");
  EXPECT_EQ(runs[4].from, "");
  EXPECT_EQ(runs[5].from, "on-seed2");
  EXPECT_THAT(runs[5].needs, ElementsAre("on-seed2"));
  EXPECT_FALSE(needs_retrofit(runs[1].recipe, runs[0].recipe));
  EXPECT_TRUE(needs_retrofit(runs[0].recipe, runs[2].recipe));
}

TEST(StudyRecipe, RefusesChainsThatCannotBe) {
  Json study = chained_study();
  study["axes"]["mixing"]["block"]["from"] = "resid";
  EXPECT_THAT(error_of(study), HasSubstr("axes.mixing.block: from: the axis has no arm resid; the "
                                         "nearest is residual"));
  study["axes"]["mixing"]["block"]["from"] = 3;
  EXPECT_THAT(error_of(study), HasSubstr("axes.mixing.block.from: expected the name of an arm"));
  study = chained_study();
  study["axes"]["mixing"]["residual"]["from"] = "on";
  EXPECT_THAT(error_of(study), HasSubstr("begin with each other in a circle"));
  study = chained_study();
  study["axes"]["mixing"]["on"]["model.width"] = 64;
  EXPECT_THAT(error_of(study), HasSubstr("run on-seed1: it cannot begin with the weights of "
                                         "residual-seed1: model.width: 32 -> 64"));
  study = chained_study();
  study["axes"]["mixing"]["residual"]["model.depth_mixing"]["type"] = "attn_res";
  EXPECT_THAT(error_of(study), HasSubstr("only plain residual connections can become others"));
  study = chained_study();
  study["axes"]["rate"] = {{"low", {{"train.clip", 1}}},
                           {"high", {{"from", "low"}, {"train.clip", 2}}}};
  EXPECT_THAT(error_of(study), HasSubstr("only one axis may have arms with from"));
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
    EXPECT_LE(plan_runs(study, {.smoke = true}).size(), runs);
    EXPECT_NE(study.claim, "");
    EXPECT_NE(study.figures, "[]");
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
  EXPECT_THAT(error_of(study), HasSubstr("seeds: expected a whole number from 1 to 10000, got 0"));
  study["seeds"] = 5001;
  EXPECT_THAT(error_of(study), HasSubstr("more than 10000 runs"));
}

TEST(StudyRecipe, IsNoRecipeAndNoRecordOfAStudy) {
  EXPECT_THAT(error_of(tiny_study()["base"]),
              AllOf(HasSubstr("recipe of one run"), HasSubstr("attnres train --recipe")));
  EXPECT_THAT(error_of({{"study", "tiny"}, {"runs", Json::array()}}),
              AllOf(HasSubstr("record of a study that has begun"), HasSubstr("attnres watch /")));
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
  study["smoke"]["model.depth_mixing"] = {{"type", "residual"}};
  EXPECT_THAT(error_of(study, {.smoke = true}), HasSubstr("have the same recipe"));
  EXPECT_THAT(error_of(tiny_study(), {.overrides = {"model.depth_mixing.type=mhc"}}),
              HasSubstr("the axis mixing sets model.depth_mixing.type"));
  EXPECT_THAT(error_of(tiny_study(), {.overrides = {"train.seed=4"}}), HasSubstr("use --seeds"));
  study = tiny_study();
  study["axes"]["mixing"]["block"]["train.seed"] = 3;
  EXPECT_THAT(error_of(study), HasSubstr("train.seed is set by \"seeds\""));
}

TEST(StudyRecipe, HasNoMoreThanItCanTrainAndDraw) {
  Json study = tiny_study();
  for (int i = 0; i < 32; ++i) study["axes"][fmt::format("a{}", i)] = {{"x", Json::object()}};
  EXPECT_THAT(error_of(study), HasSubstr("axes: a study has 32 axes at most, this has 33"));
  study = tiny_study();
  for (int i = 0; i < 10'000; ++i) study["axes"]["mixing"][fmt::format("a{}", i)] = Json::object();
  EXPECT_THAT(error_of(study), HasSubstr("axes: the grid has more than 10000 runs"));
  study = tiny_study();
  study["figures"] = Json::array_t(101, {{"kind", "dynamics"}});
  EXPECT_THAT(error_of(study), HasSubstr("figures: a page has 100 at most, this has 101"));
  study = tiny_study();
  for (int i = 0; i < 101; ++i) study["tune"]["values"].push_back(1e-3 + 1e-5 * i);
  study["tune"]["key"] = "train.learning_rate";
  EXPECT_THAT(error_of(study), HasSubstr("tune.values: expected 100 numbers at most, got 101"));
}

TEST(StudyRecipe, KnowsKeysThatOverlap) {
  EXPECT_TRUE(overlap("a.b", "a.b"));
  EXPECT_TRUE(overlap("a.b", "a.b.c"));
  EXPECT_TRUE(overlap("a.b.c", "a"));
  EXPECT_FALSE(overlap("a.b", "a.bc"));
  EXPECT_FALSE(overlap("a.c", "a.b.c"));
}

}  // namespace
}  // namespace attnres::testing::study_recipe_test
