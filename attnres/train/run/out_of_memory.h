// What there is to say, and to do, where memory runs out in a run.
#pragma once

#include <cstdint>
#include <exception>

#include "attnres/train/train_job.h"

namespace attnres {

// Throws Error, on one line: where memory ran out and in which step, which checkpoint is whole, and
// how the run, or a new one with its weights that needs less, goes on from there.
[[noreturn]] void fail_out_of_memory(const TrainJob& job, int64_t step, const std::exception& why);

}  // namespace attnres
