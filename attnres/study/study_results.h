// What a study reached, for programs and spreadsheets.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "attnres/study/study_folder.h"
#include "attnres/study/study_plan.h"

namespace attnres {

// What study.json says beside its runs.
struct StudyRecord {
  std::string name, question;
  std::vector<std::string> axes;  // their names
  std::vector<std::string> data;  // absolute paths; empty: the text that training takes by itself
  int threads = 1;                // of each run
  std::vector<std::string> validation = {};  // absolute paths; empty: a part of the data
  std::string claim = {};                    // what the report says
  std::vector<std::pair<std::string, std::string>> baseline = {};  // axis, arm
  std::string figures = "[]";                                      // as JSON
  std::string tuning = "null";                                     // as JSON, see tuning_json
  std::string chosen = "null";                                     // as JSON, of StudyRecipe
  bool smoke = false;                                              // whether every run is tiny
};

// Runs that differ in their seed at most.
struct ArmResult {
  std::vector<std::string> arms;  // one of each axis
  int64_t runs = 0, done = 0;
  // Over the runs that are done, NaN where none is: the validation loss at the last step in nats
  // per token, and for two runs or more its standard deviation over the seeds (n - 1).
  double mean_loss = 0, loss_deviation = 0;
  double tokens_per_second = 0;  // their mean, of training without evaluation
};

// Of the grid, without trials, in the order in which the runs first have them.
std::vector<ArmResult> arm_results(const std::vector<StudyRun>& runs,
                                   const std::vector<RunStatus>& statuses);

// study.json: the record, and a list of runs with name, arms by axis, seed, role ("trial" or
// "run"), state, step, steps, parameters, tokens so far, flops (of the whole run, of matrix
// products, two a multiply-add), from (the run that it begins with, or null), seconds,
// final_val_loss, best_val_loss, best_step, and the error of one that failed. Losses are null until
// they are measured.
Json study_json(const StudyRecord& record, const std::vector<StudyRun>& runs,
                const std::vector<RunStatus>& statuses, const std::vector<RunPlan>& plans);

// The same as a table with a line per run, and one of the arms with their differences to the
// baseline (see compare_study), for which `study` is study_json of the same.
std::string runs_csv(const StudyRecord& record, const std::vector<StudyRun>& runs,
                     const std::vector<RunStatus>& statuses, const std::vector<RunPlan>& plans);
std::string arms_csv(const StudyRecord& record, const std::vector<StudyRun>& runs,
                     const std::vector<RunStatus>& statuses, const Json& study);

}  // namespace attnres
