// A study from beginning to end: what is missing of a grid of runs is trained, and what it reached
// written down. A study that was stopped or killed goes on where it was; what is done stays.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "attnres/study/study_results.h"
#include "attnres/study/study_runner.h"

namespace attnres {

struct StudyJob {
  std::string name, question;
  std::vector<std::string> axes;  // their names
  std::vector<StudyRun> runs;     // the whole grid
  std::vector<size_t> chosen;     // of them, by index: which to train
  // Files and folders of text; empty: those that the study began with, or what training takes.
  std::vector<std::filesystem::path> data;
  std::filesystem::path out;  // the study's folder
  // Runs at once. A new study divides the processors among them, and keeps to that number of
  // threads a run: with another, results would differ in their last bits and speeds not compare.
  int jobs = 1;
  double stop_after = std::numeric_limits<double>::infinity();  // seconds
  std::filesystem::path program = "/proc/self/exe";             // attnres
};

// Whose names match one of the patterns, as of a shell ("block*-seed1"); all where there are none.
// Throws UsageError for a pattern that matches no run.
std::vector<size_t> choose_runs(const std::vector<StudyRun>& runs,
                                const std::vector<std::string>& patterns);

// What a study has in its folder already, and what the rest will take. Writes nothing.
struct StudyOutlook {
  StudyRecord record;  // with the text and threads that runs will have
  std::vector<RunStatus> statuses;
  std::vector<RunPlan> plans;

  // Of the chosen runs that are not done; of one that is unfinished, what is left.
  double seconds(const StudyJob& job) const;
};
// Throws Error where the folder holds something else or another study, or runs of it that have
// begun with another recipe or text.
StudyOutlook look_ahead(const StudyJob& job);

struct StudySummary {
  StudyRecord record;
  std::vector<RunStatus> statuses;  // of all runs
  bool was_stopped = false;         // before all the chosen had been tried
  std::filesystem::path report;     // empty: none of the runs is done, or it could not be written
  std::vector<std::string> notes;   // what could not be done, and of the report
};

// Throws as look_ahead, and Error where another process runs a study in the folder, its disk has no
// room for the checkpoints of the runs, or what a study writes cannot be written.
StudySummary run_study(const StudyJob& job, StudyObserver& observer);

}  // namespace attnres
