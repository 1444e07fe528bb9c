// A cluster file of this machine, measured.
#pragma once

#include <cstdint>

#include "attnres/plan/cluster.h"
#include "attnres/plan/layout.h"

namespace attnres {

// As `devices` processes of one thread each: with all of them at work at once, products of matrices
// in float32, and in bfloat16 where the processor has them, copies, and messages as two copies
// through memory that both share; each has its part of the machine's memory. About 0.5 s, and only
// true where nothing else runs. Throws UsageError where there are more devices than processors.
Cluster measure_this_machine(int64_t devices);

// The cluster with devices of which each is planned to take so long for a step of the whole model:
// with a lower `device.efficiency`, or, where caches make it faster than is planned with 1, with as
// much more FLOP/s and bandwidth.
Cluster fitted_to(double seconds, const PlannedModel& model, Cluster cluster);
// What a step takes here, in seconds: with so many devices at work at once, each on the whole model
// and random tokens (train/estimate/estimate.h: time_step). Allocates what these trainings would.
double measure_step(const PlannedModel& model, int64_t devices);

}  // namespace attnres
