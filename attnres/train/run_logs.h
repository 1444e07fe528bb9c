// The logs of a run folder, open to be written on from where a checkpoint left them.
#pragma once

#include "attnres/train/checkpoint.h"
#include "attnres/train/line_log.h"
#include "attnres/train/run_folder.h"

namespace attnres {

struct RunLogs {
  // Cuts each log back to its length in `state`. Throws Error as LineLog.
  RunLogs(const RunPaths& paths, const TrainingState& state);
  // Flushes all to the disk, and notes their lengths in `state`.
  void sync(TrainingState& state);

  LineLog metrics, probes, samples;
};

}  // namespace attnres
