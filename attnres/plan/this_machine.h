// A cluster file of this machine, measured.
#pragma once

#include <cstdint>

#include "attnres/plan/cluster.h"

namespace attnres {

// As `devices` processes of one thread each: with all of them at work at once, products of matrices
// in float32, and in bfloat16 where the processor has them, copies, and messages as two copies
// through memory that both share; each has its part of the machine's memory. About 0.5 s, and only
// true where nothing else runs. Throws UsageError where there are more devices than processors.
Cluster measure_this_machine(int64_t devices);

}  // namespace attnres
