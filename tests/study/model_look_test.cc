#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "attnres/study/study.h"
#include "attnres/support/file.h"
#include "attnres/train/trainer.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::model_look_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A study whose only run is done, and a program that does no more than look into its model.
class ModelLooks : public ::testing::Test {
 protected:
  ModelLooks() {
    Json study = tiny_study();
    study["seeds"] = 1;
    study["inspect"] = true;
    study["axes"]["mixing"].erase("block");
    const fs::path text = base_ / "text";
    attnres::write_text(text, real_text(4000));
    job_.study = read_study(write_study(base_ / "s.json", study));
    job_.out = base_ / "out";
    job_.program = base_ / "program";
    at::set_num_threads(1);
    train({.recipe = plan_runs(job_.study)[0].recipe, .data = {text}, .out = run_});
    attnres::write_text(StudyPaths{job_.out}.study_json(),
                        R"({"study": "tiny", "data": [], "threads": 1, "runs": []})");
  }

  StudySummary run_with(const std::string& script) const {
    attnres::write_text(job_.program, "#!/bin/sh\n" + script);
    fs::permissions(job_.program, fs::perms::owner_all);
    StudyObserver silent;
    return run_study(job_, silent);
  }

  const fs::path base_ = fresh_folder("study");
  const fs::path run_ = StudyPaths{base_ / "out"}.run("residual-seed1").folder;
  StudyJob job_;
};

TEST_F(ModelLooks, AreKeptBesideTheRunAndMadeOnce) {
  const fs::path kept = run_ / "inspection.json";
  EXPECT_THAT(run_with("echo loading >&2; echo \"{\\\"asked\\\": \\\"$*\\\"}\"").notes, IsEmpty());
  EXPECT_EQ(read_json(kept).at("asked"),
            fmt::format("inspect --model {} --all --json --threads 1", run_.string()));
  const std::string before = read_file(kept);
  EXPECT_THAT(run_with("exit 3").notes, IsEmpty());  // nobody asks it
  EXPECT_EQ(read_file(kept), before);
}

TEST_F(ModelLooks, ScoreWithWholeWeightsAndInEachFormat) {
  job_.study.inspect = false;
  job_.study.weights = {"q8_0", "bf16"};
  EXPECT_THAT(run_with("echo \"{\\\"loss\\\": 2, \\\"asked\\\": \\\"$*\\\"}\"").notes, IsEmpty());
  EXPECT_FALSE(fs::exists(run_ / "inspection.json"));
  for (const char* format : {"f32", "q8_0", "bf16"}) {
    EXPECT_EQ(
        read_json(run_ / fmt::format("loss-{}.json", format)).at("asked"),
        fmt::format("eval --run {} --weights {} --max-tokens {} --json --threads 1", run_.string(),
                    format, plan_runs(job_.study)[0].recipe.train.eval_tokens));
  }
}

TEST_F(ModelLooks, ThatFailAreNotes) {
  const StudySummary failed = run_with("echo 'attnres: error: no eyes' >&2; exit 1");
  EXPECT_THAT(failed.notes, ElementsAre("residual-seed1: could not be inspected: no eyes"));
  EXPECT_EQ(failed.outlook.statuses.at(0).state, RunState::done);
  EXPECT_FALSE(failed.was_stopped);
  EXPECT_THAT(run_with("echo '{\"half'").notes,
              ElementsAre(HasSubstr("residual-seed1: could not be inspected: ")));
  EXPECT_FALSE(fs::exists(run_ / "inspection.json"));
}

}  // namespace
}  // namespace attnres::testing::model_look_test
