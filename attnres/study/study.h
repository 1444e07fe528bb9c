// A study from beginning to end: what is missing of a grid of runs is trained, and what it reached
// written down. A study that was stopped or killed goes on where it was; what is done stays.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "attnres/study/study_results.h"
#include "attnres/study/study_runner.h"

namespace attnres {

struct StudyJob {
  StudyRecipe study;
  GridOptions grid = {};
  // Which runs to train, with those that they need: patterns as of a shell ("block*-seed1"); all
  // where there are none.
  std::vector<std::string> only = {};
  // Files and folders of text; empty: those that the study began with, or what training takes.
  std::vector<std::filesystem::path> data = {};
  std::vector<std::filesystem::path> validation = {};  // as of `train --validation`
  std::filesystem::path out;                           // the study's folder
  // Runs at once. A new study divides the processors among them, and keeps to that number of
  // threads a run: with another, results would differ in their last bits and speeds not compare.
  int jobs = 1;
  int threads = 0;  // of each run; 0: those that it divides, or that the study began with
  // Where runs compute, as find_device takes it; empty: where they did before, or the CPU. They may
  // go on elsewhere: the same steps, rounded otherwise. Runs at once share one GPU.
  std::string device = {};
  SpeedOf speed_of = {};  // what the plan goes by; this machine's, measured, if not given
  double stop_after = std::numeric_limits<double>::infinity();  // seconds
  std::filesystem::path program = "/proc/self/exe";             // attnres
};

// By index: whose names match one of the patterns, and what these need; all where there are none.
std::vector<size_t> choose_runs(const std::vector<StudyRun>& runs,
                                const std::vector<std::string>& patterns);
// Throws UsageError for a pattern that matches no run.
void require_matches(const std::vector<StudyRun>& runs, const std::vector<std::string>& patterns);

// What a study has in its folder already, and what the rest will take. Writes nothing.
struct StudyOutlook {
  StudyRecord record;  // with the text, threads and device that runs will have; without runs
  std::string device_before = {};  // where they computed until now, if that was elsewhere
  std::vector<StudyRun> runs;      // trials and the whole grid, as the trials in the folder make it
  std::vector<size_t> chosen;      // of them: which to train
  std::vector<RunStatus> statuses;
  std::vector<RunPlan> plans;  // without seconds where nothing is left to train
  SpeedOf speed_of;            // what they go by
  std::vector<std::string> notes;

  // The record, with all runs as far as they are.
  StudyRecord reached() const;
  // For the chosen runs that have not ended; for one that is unfinished, what is left.
  double seconds(int jobs) const;
};
// Throws as plan_runs; UsageError for a pattern that matches no run, and where something is left to
// train on a device that is not there; and Error where the folder
// holds something else or another study, or runs of it that have begun with another recipe or text.
StudyOutlook look_ahead(const StudyJob& job);

// Where runs go more often over their text than kMostPasses (quick_study.h), a sentence that says
// so; else empty. By the sizes of the files: a token is a byte or more, and a part is held out.
std::string warning_of_little_text(const StudyOutlook& outlook);

struct StudySummary {
  StudyOutlook outlook;                // as it is in the end
  bool was_stopped = false;            // before all the chosen had been tried
  std::filesystem::path report;        // empty: no run has begun, or it could not be written
  std::vector<std::string> sentences;  // of the report, one for each arm that is compared
  std::vector<std::string> notes;      // what could not be done, and of the report
};

// Throws as look_ahead, and Error where another process runs a study in the folder, its disk has no
// room for the checkpoints of the runs, or what a study writes cannot be written.
StudySummary run_study(const StudyJob& job, StudyObserver& observer);

}  // namespace attnres
