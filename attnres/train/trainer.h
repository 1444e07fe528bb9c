// Training: from a recipe and text to a run folder (see run_folder.h) with checkpoints, metrics,
// probes and samples. Everything is deterministic for a given recipe, data and number of threads,
// and resuming is exact.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "attnres/parallel/communicator.h"
#include "attnres/train/train_job.h"
#include "attnres/train/train_observer.h"

namespace attnres {

struct TrainSummary {
  std::string name;
  std::filesystem::path folder;
  bool was_finished = false;  // nothing was left to do
  bool was_stopped = false;   // by the observer before the last step, and saved
  int64_t steps = 0, tokens = 0;
  double seconds = 0;     // of training, without evaluation
  double final_loss = 0;  // of the validation text, nats per token
  double best_loss = 0;
  int64_t best_step = 0;
  double unigram_entropy = 0;  // of what counts of the validation text: reached without context
  double uniform_loss = 0;     // of equal probabilities for all tokens: reached without learning
  double tokens_per_second = 0;
  int64_t peak_bytes = 0;  // of a process of the run at most: resident, or on its GPU
};

// Can be called again and again; handles no signals and writes nothing but the run folder. Throws
//   UsageError  where recipe and data cannot go together
//   Error       when the recipe describes another model or tokenizer than job.from holds (it names
//               the keys that differ), the run folder holds another run or is in use, memory or
//               disk are too small or run out, or the loss is no longer finite; the last good
//               checkpoint stands
TrainSummary train(const TrainJob& job, TrainObserver& observer);
// In silence.
TrainSummary train(const TrainJob& job);

// The same by several processes (many_processes.h), whose rank 0 calls `train` and the others, at
// the same time, `follow_training`. Rank 0 alone reads plain text and writes the logs; all of them
// write their parts of checkpoints. What all throw alike, since one of them could not begin or
// save, is CommonError or CommonFailure; where one throws anything else the others must be ended
// too (Communicator::abort), since they wait for it.
TrainSummary train(const TrainJob& job, TrainObserver& observer, Communicator& world);
void follow_training(const TrainJob& job, Communicator& world);

}  // namespace attnres
