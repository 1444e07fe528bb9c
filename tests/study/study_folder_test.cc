#include "attnres/study/study_folder.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "attnres/study/study.h"
#include "attnres/support/error.h"
#include "attnres/train/trainer.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_folder_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class Stop : public TrainObserver {
 public:
  bool should_stop() override { return true; }
};

class StudyFolder : public ::testing::Test {
 protected:
  StudyFolder() { attnres::write_text(text_, real_text(4000)); }

  std::vector<StudyRun> runs(const GridOptions& options = {}) const {
    return plan_runs(read_study(write_study(base_ / "s.json", tiny_study())), options);
  }
  // As a study would, in this process.
  void train_run(const StudyRun& run, bool to_its_end) const {
    at::set_num_threads(1);
    const TrainJob job = {
        .recipe = run.recipe, .data = {text_}, .out = paths_.run(run.name).folder};
    Stop stop;
    if (to_its_end) {
      train(job);
    } else {
      train(job, stop);
    }
  }

  const fs::path base_ = fresh_folder("study"), text_ = base_ / "text";
  const StudyPaths paths_{base_ / "out"};
};

TEST_F(StudyFolder, TellsHowFarRunsAre) {
  const std::vector<StudyRun> all = runs();
  train_run(all[0], /*to_its_end=*/true);
  train_run(all[1], /*to_its_end=*/false);
  const auto statuses = look_at_runs(paths_, all);
  EXPECT_EQ(statuses[0].state, RunState::done);
  EXPECT_EQ(statuses[0].saved->step, 6);
  EXPECT_GT(statuses[0].parameters, 0);
  EXPECT_EQ(statuses[1].state, RunState::unfinished);
  EXPECT_EQ(statuses[1].saved->step, 1);
  EXPECT_EQ(logged_steps(paths_.run(all[1].name)), 1);
  EXPECT_EQ(statuses[2].state, RunState::missing);
  EXPECT_EQ(logged_steps(paths_.run(all[2].name)), 0);
  attnres::write_text(paths_.run(all[2].name).metrics(), "{\"step\": 7}\n{\"step\": 8}\n{\"st");
  EXPECT_EQ(logged_steps(paths_.run(all[2].name)), 8);
  attnres::write_text(paths_.run(all[2].name).metrics(), "{\"step\": \"many\"}\n");
  EXPECT_EQ(logged_steps(paths_.run(all[2].name)), 0);
}

TEST_F(StudyFolder, TellsThatRunsDiverged) {
  std::vector<StudyRun> all = runs();
  train_run(all[0], /*to_its_end=*/false);
  const RunPaths run = paths_.run(all[0].name);
  Json record = read_run_json(run);
  record["diverged"] = {{"step", 2}, {"error", "the loss is nan:\n  take another"}};
  attnres::write_text(run.run_json(), record.dump());
  const RunStatus failed = look_at_runs(paths_, all).at(0);
  EXPECT_EQ(failed.state, RunState::failed);
  EXPECT_EQ(failed.error, "the loss is nan:   take another");
  EXPECT_EQ(failed.saved->step, 1);
  EXPECT_FALSE(failed.has_ended());
  all[0].is_trial = true;
  EXPECT_EQ(look_at_runs(paths_, all).at(0).state, RunState::diverged);
}

TEST_F(StudyFolder, RemembersFailuresOfRunsThatAreNotDone) {
  const std::vector<StudyRun> all = runs();
  train_run(all[0], /*to_its_end=*/true);
  const std::vector<RunStatus> failed(4, {.state = RunState::failed, .saved = {}, .error = "why"});
  const StudyRecord record =
      with_runs({.name = "tiny", .axes = {"mixing"}}, all, failed, std::vector<RunPlan>(4));
  attnres::write_text(paths_.study_json(), study_json(record).dump());
  const auto statuses = look_at_runs(paths_, all);
  EXPECT_EQ(statuses[0].state, RunState::done);
  EXPECT_EQ(statuses[0].error, "");
  EXPECT_EQ(statuses[1].state, RunState::failed);
  EXPECT_EQ(statuses[1].error, "why");
}

TEST_F(StudyFolder, RefusesRunsWhoseRecipeHasChanged) {
  const std::vector<StudyRun> all = runs();
  train_run(all[1], /*to_its_end=*/true);
  EXPECT_NO_THROW(require_same_recipes(paths_, all));
  const auto changed = runs({.overrides = {"train.clip=0.5"}});
  EXPECT_THAT(message_of<Error>([&] { require_same_recipes(paths_, changed); }),
              AllOf(HasSubstr("block-seed1\n    train.clip: 1.0 -> 0.5"),
                    Not(HasSubstr("residual-seed1")), HasSubstr("another --out")));
}

TEST_F(StudyFolder, KeepsSmokeTestsApart) {
  StudyJob job = {.study = read_study(write_study(base_ / "s.json", tiny_study())),
                  .out = paths_.folder};
  for (const bool smoke : {true, false}) {
    const Json study = {{"study", "tiny"}, {"smoke", smoke}, {"runs", Json::array()}};
    attnres::write_text(paths_.study_json(), study.dump());
    job.grid.smoke = !smoke;
    EXPECT_THAT(message_of<Error>([&] { look_ahead(job); }),
                AllOf(HasSubstr(paths_.folder.string() + ": holds "), HasSubstr("smoke test"),
                      HasSubstr("; choose another --out")));
  }
}

TEST_F(StudyFolder, RefusesFoldersOfOthers) {
  EXPECT_FALSE(read_begun_study(paths_, "tiny").has_value());
  attnres::write_text(paths_.study_json(), R"({"study": "other"})");
  EXPECT_THAT(message_of<Error>([&] { read_begun_study(paths_, "tiny"); }),
              HasSubstr("holds the study other"));
  attnres::write_text(paths_.study_json(), R"({"runs": []})");
  EXPECT_THAT(message_of<Error>([&] { read_begun_study(paths_, "tiny"); }),
              HasSubstr("not a study's"));
  fs::remove(paths_.study_json());
  attnres::write_text(paths_.folder / "run.json", "{}");
  EXPECT_THAT(message_of<Error>([&] { read_begun_study(paths_, "tiny"); }),
              HasSubstr("holds a run"));
  fs::create_directories(paths_.folder / "runs");
  EXPECT_THAT(message_of<Error>([&] { read_begun_study(paths_, "tiny"); }),
              HasSubstr("no study.json"));
}

TEST_F(StudyFolder, RunsAreChosenByPattern) {
  const std::vector<StudyRun> all = runs();
  EXPECT_THAT(choose_runs(all, {}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(choose_runs(all, {"*-seed2", "block*"}), ElementsAre(1, 2, 3));
  EXPECT_THAT(message_of<UsageError>([&] {
                require_matches(all, {"block*", "blok-seed1"});
              }),
              AllOf(HasSubstr("--only blok-seed1"), HasSubstr("nearest is block-seed1")));
}

}  // namespace
}  // namespace attnres::testing::study_folder_test
