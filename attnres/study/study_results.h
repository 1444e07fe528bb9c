// What a study reached, for programs and spreadsheets.
#pragma once

#include <string>
#include <vector>

#include "attnres/study/study_folder.h"
#include "attnres/study/study_plan.h"
#include "attnres/study/study_record.h"

namespace attnres {

// The record with what its runs, of these plans, have reached.
StudyRecord with_runs(StudyRecord record, const std::vector<StudyRun>& runs,
                      const std::vector<RunStatus>& statuses, const std::vector<RunPlan>& plans);

// Runs that differ in their seed at most.
struct ArmResult {
  std::vector<std::string> arms;  // one of each axis
  int64_t runs = 0, done = 0;
  // Over the runs that are done, NaN where none is: the validation loss at the last step in nats
  // per token, and for two runs or more its standard deviation over the seeds (n - 1).
  double mean_loss = 0, loss_deviation = 0;
  double tokens_per_second = 0;  // their mean, of training without evaluation
};

// Arms of the grid, without trials, in the order in which the runs first have them.
std::vector<ArmResult> arm_results(const StudyRecord& study);

// study.json as a table with a line per run, and one of the arms with their differences to the
// baseline (see compare_study).
std::string runs_csv(const StudyRecord& study);
std::string arms_csv(const StudyRecord& study);

}  // namespace attnres
