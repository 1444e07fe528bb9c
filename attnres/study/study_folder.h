// Where a study keeps what, and how far its runs are. The folder holds
//   study.json      the study, its text, threads and device, and of every run its state, what it
//                   reached, and why it failed
//   runs.csv        a line per run        arms.csv   a line per combination of arms, over its seeds
//   report.html     what the runs tell so far (see study_page.h)
//   recipes/        of each run, NAME.json
//   runs/           a run folder each (train/run_folder/run_folder.h); where the study inspects its
//                   models or scores them with other weights, also inspection.json or
//                   loss-FORMAT.json (model_look.h)
//   starts/         retrofitted models that runs begin with, NAME
//   logs/           what each run printed at its last attempt, NAME.log
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/study/study_grid.h"
#include "attnres/study/study_record.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {

struct StudyPaths {
  std::filesystem::path folder;

  std::filesystem::path study_json() const { return folder / "study.json"; }
  std::filesystem::path runs_csv() const { return folder / "runs.csv"; }
  std::filesystem::path arms_csv() const { return folder / "arms.csv"; }
  std::filesystem::path report() const { return folder / "report.html"; }
  std::filesystem::path recipes() const { return folder / "recipes"; }
  std::filesystem::path recipe(const std::string& run) const { return recipes() / (run + ".json"); }
  RunPaths run(const std::string& run) const { return {folder / "runs" / run}; }
  std::filesystem::path start(const std::string& run) const { return folder / "starts" / run; }
  std::filesystem::path logs() const { return folder / "logs"; }
  std::filesystem::path log(const std::string& run) const { return logs() / (run + ".log"); }
};

struct RunStatus {
  RunState state = RunState::missing;
  std::optional<TrainingState> saved = {};  // by its last checkpoint
  int64_t parameters = 0;                   // 0 of a run that never began
  std::string error = {};                   // why it failed, on one line

  // Whether there is nothing left to train.
  bool has_ended() const { return state == RunState::done || state == RunState::diverged; }
};

// How far a run is by what lies in its folder, which of all failures tells that it diverged.
RunStatus look_at_run(const StudyPaths& paths, const StudyRun& run);

// Looks at every run, in their order, with the failures that study.json remembers of those not
// done. Runs that wait are only that, and those with an obstacle have failed.
std::vector<RunStatus> look_at_runs(const StudyPaths& paths, const std::vector<StudyRun>& runs);

// Losses of the trials that have ended.
TrialLosses trial_losses(const std::vector<StudyRun>& runs, const std::vector<RunStatus>& statuses);

// Throws Error naming the runs that have begun with another recipe, and the keys that differ. Of
// those that wait nothing is said: their recipes are not known.
void require_same_recipes(const StudyPaths& paths, const std::vector<StudyRun>& runs);

// study.json, or nothing where there is none. Throws Error where the folder is there, but holds
// something else, or another study than `name`.
std::optional<StudyRecord> read_begun_study(const StudyPaths& paths, const std::string& name);

// Steps that a run which is at work has done, by its log; 0 where there is none.
int64_t logged_steps(const RunPaths& run);

}  // namespace attnres
