// Training the runs of a study, each in a process of its own.
#pragma once

#include <filesystem>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/study/model_look.h"
#include "attnres/study/study_folder.h"
#include "attnres/study/study_plan.h"

namespace attnres {

// A run that is at work.
struct RunAtWork {
  std::string name;
  int64_t step = 0, steps = 0;
};

// Numbers of the runs that there were to train, those that were done before among them.
struct StudyProgress {
  int64_t runs = 0, done = 0, failed = 0;
  double share = 0;         // of their multiply-adds, but for those of failed runs: 0 to 1
  double seconds_left = 0;  // at the mean rate so far; by the plan before there is one
  std::vector<RunAtWork> at_work;
};

// What the work tells whoever started it, and asks of them.
class StudyObserver {
 public:
  virtual ~StudyObserver() = default;
  // A line worth keeping: a run that is done or failed, a warning.
  virtual void on_message(std::string_view /*line*/) {}
  // Again and again, several times a second.
  virtual void on_progress(const StudyProgress&) {}
  // Asked as often. Where it is true, runs save themselves, and none begins.
  virtual bool should_stop() { return false; }
};

struct RunnerOptions {
  std::filesystem::path program = "/proc/self/exe";  // attnres
  std::vector<std::string> data, validation;         // of `train`
  std::vector<ModelLook> looks;                      // into the models of runs that are done
  int jobs = 1;                                      // runs at once
  // Threads of each run. Where there are processors for all of them, each job keeps to its own.
  int threads = 1;
  std::string device = "cpu";                                   // of `train` and of looks
  double stop_after = std::numeric_limits<double>::infinity();  // seconds
};

struct RunnerResult {
  bool was_stopped = false;  // before all had been tried
  std::vector<std::string> notes;
};

// Trains the runs with these indices, in their order, as far as they have not ended and do not wait
// for trials, and keeps `statuses` (of all the runs) up to date. A run that fails leaves the others
// alone, but for those that begin with its weights, which fail too. Calls `on_change` whenever a
// status changed. If anything throws, runs at work are interrupted, and have saved themselves.
RunnerResult train_runs(const StudyPaths& paths, const std::vector<StudyRun>& runs,
                        const std::vector<RunPlan>& plans, const std::vector<size_t>& chosen,
                        const RunnerOptions& options, std::vector<RunStatus>& statuses,
                        StudyObserver& observer, const std::function<void()>& on_change);

}  // namespace attnres
