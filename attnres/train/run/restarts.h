// How often a run that is begun again by itself went on from one checkpoint.
#pragma once

#include "attnres/train/train_job.h"
#include "attnres/train/train_observer.h"

namespace attnres {

// Notes in run.json that the run goes on from its last checkpoint, unless it is finished. Throws
// Error where it has done so `job.restarts` times without another checkpoint since, and where it
// diverged: what ends it would end it again. The run is locked.
void count_restart(const TrainJob& job, TrainObserver& observer);

}  // namespace attnres
