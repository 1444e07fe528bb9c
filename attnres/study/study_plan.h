// What the runs of a study will take.
#pragma once

#include <vector>

#include "attnres/study/study_grid.h"
#include "attnres/train/estimate.h"

namespace attnres {

// Of a whole run.
struct RunPlan {
  int64_t parameters = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double flops = 0;        // of matrix products, two a multiply-add
  double seconds = 0;      // run_seconds of estimate.h; NaN: not measured
  int64_t bytes = 0;       // of memory, at its largest
  int64_t disk_bytes = 0;  // of its checkpoints, while one replaces another
};

// In the order of the runs, each computing on `threads` threads. With `measure` it takes a quarter
// of a second more, in which it measures the machine.
std::vector<RunPlan> plan_costs(const std::vector<StudyRun>& runs, int threads, bool measure);

// Of `jobs` runs at once, how many this machine has cores for.
int runs_side_by_side(int jobs, int threads);

}  // namespace attnres
