// A model in training as a run begins with it, or goes on with it: the whole, or the part of it
// that one of several processes has.
#pragma once

#include <cstdint>

#include "attnres/train/run/run_processes.h"
#include "attnres/train/run_folder/checkpoint.h"
#include "attnres/train/train_job.h"

namespace attnres {

// How many token embeddings such a model has: one for each of `vocab_size` tokens, and published
// ones some more. Throws Error where job.from has fewer.
int64_t embeddings_of(const TrainJob& job, int64_t vocab_size, FirstWeights weights);

// How weights that the run does not train are kept (base_weights), as it begins or goes on.
WeightFormats kept_weights(const TrainJob& job);

// Reads the files that hold what is asked for, and no others. Throws Error as load_model and
// load_checkpoint.
Training make_training(const TrainJob& job, int64_t vocab_size, FirstWeights weights,
                       const ModelPart& part = {});

}  // namespace attnres
