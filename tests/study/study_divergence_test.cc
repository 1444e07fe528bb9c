// What a study makes of the exit codes of its trials.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/study/study.h"
#include "attnres/support/error.h"
#include "tests/study/tiny_study.h"
#include "tests/text/test_files.h"

namespace attnres::testing::study_divergence_test {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;

// The states of two trials whose processes begin a run and end with this code.
std::vector<RunState> states_of_trials(int exit_code) {
  const fs::path base = fresh_folder("study");
  Json study = tiny_study();
  study["seeds"] = 1;
  study["axes"]["mixing"].erase("block");
  study["tune"] = {{"key", "train.learning_rate"}, {"values", {0.001, 0.01}}};
  const StudyJob job = {
      .study = read_study(write_study(base / "s.json", study)),
      .out = base / "out",
      .threads = 1,
      .speed_of = [](const Recipe&) { return MachineSpeed{.matmul = 1e11, .copy = 3e10}; },
      .program = base / "program"};
  // train --recipe FILE --out DIR ..
  attnres::write_text(job.program, R"sh(#!/bin/sh
mkdir -p "$5"
printf '{"recipe": %s, "data": {"hash": "", "paths": []}}' "$(cat "$3")" > "$5/run.json"
echo 'attnres: error: why' >&2
exit )sh" + std::to_string(exit_code));
  fs::permissions(job.program, fs::perms::owner_all);
  StudyObserver silent;
  const StudyOutlook outlook = run_study(job, silent).outlook;
  std::vector<RunState> states;
  for (size_t i = 0; i < outlook.runs.size(); ++i) {
    if (!outlook.runs[i].is_trial) continue;
    states.push_back(outlook.statuses[i].state);
    EXPECT_EQ(outlook.statuses[i].error, "why");
  }
  EXPECT_EQ(states.size(), 2u);
  return states;
}

TEST(StudyDivergence, OfATrialIsToldByTheExitCode) {
  EXPECT_THAT(states_of_trials(kDivergedCode), Each(RunState::diverged));
  EXPECT_THAT(states_of_trials(kFailedCode), Each(RunState::failed));
}

}  // namespace
}  // namespace attnres::testing::study_divergence_test
