// The logs of a run folder, open to be written on from where a checkpoint left them.
#pragma once

#include <vector>

#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/run_folder/line_log.h"
#include "attnres/train/run_folder/run_events.h"
#include "attnres/train/run_folder/run_folder.h"

namespace attnres {

struct RunLogs {
  // Cuts each log back to its length in `state`. `sublayers`: of the model. Throws Error as
  // LineLog.
  RunLogs(const RunPaths& paths, const TrainingState& state, int sublayers);
  // The lines of a step: what was measured, and what its probe read, if it had one.
  void add_step(const Json& line, const std::vector<Json>& readings);
  // Flushes all to the disk, and notes their lengths in `state`.
  void sync(TrainingState& state);

  LineLog metrics, probes, samples;

 private:
  RunEvents events_;
};

}  // namespace attnres
