// What the runs of a study will take.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attnres/study/study_grid.h"
#include "attnres/train/estimate/estimate.h"

namespace attnres {

// What a whole run takes.
struct RunPlan {
  int64_t parameters = 0;
  int64_t steps = 0;
  int64_t tokens = 0;
  double flops = 0;        // of matrix products, two a multiply-add
  double seconds = 0;      // run_seconds of estimate.h; NaN: no speed is known
  int64_t bytes = 0;       // of memory, at its largest
  int64_t disk_bytes = 0;  // of its checkpoints, while one replaces another
};

// How fast the machine is at what a recipe computes.
using SpeedOf = std::function<MachineSpeed(const Recipe&)>;

// This machine's with so many threads, measured when it is asked for: once, then for each precision
// and for each mechanism in each shape of model, a tenth of a second each. Of another device than
// "cpu" its products and copies are measured.
SpeedOf measured_speeds(int threads, const std::string& device = "cpu");

// In the order of the runs, with the memory that they take on the device. Without seconds where
// `speed_of` is empty.
std::vector<RunPlan> plan_costs(const std::vector<StudyRun>& runs, const SpeedOf& speed_of,
                                const std::string& device = "cpu");

// How many of `jobs` runs at once this machine has cores for; those on a GPU share it.
int runs_side_by_side(int jobs, int threads, const std::string& device = "cpu");

}  // namespace attnres
