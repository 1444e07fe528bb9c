// A model in training as a run begins with it, or goes on with it: the whole, or the part of it
// that one of several processes has.
#pragma once

#include <cstdint>

#include "attnres/train/checkpoint.h"
#include "attnres/train/parallel_place.h"
#include "attnres/train/run_processes.h"
#include "attnres/train/train_job.h"

namespace attnres {

// Without a place the whole. Reads the files that hold what is asked for, and no others. Throws
// Error as load_model and load_checkpoint, and where job.from has another vocabulary.
Training make_training(const TrainJob& job, int64_t vocab_size, FirstWeights weights,
                       const ParallelPlace* place = nullptr);

}  // namespace attnres
