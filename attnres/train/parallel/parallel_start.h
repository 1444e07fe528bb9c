// How the processes of a run begin: with the same job, and rank 0's text.
#pragma once

#include <string>
#include <vector>

#include "attnres/parallel/communicator.h"
#include "attnres/support/error.h"
#include "attnres/train/text/run_text.h"
#include "attnres/train/train_job.h"

namespace attnres {

// What all ranks throw alike before a run begins, so that one of them may say it.
class CommonError : public UsageError {
 public:
  using UsageError::UsageError;
};

// All ranks call it, each with what keeps it from beginning, or nothing. Throws CommonError where
// one has said something: what the lowest of them did.
void require_all_began(const std::string& problem, Communicator& world);

// All ranks call it. Throws CommonError where the recipe asks for another number of processes, or a
// rank has another recipe, text, folder or build than rank 0; it names ranks and keys.
void require_same_job(const TrainJob& job, Communicator& world);

struct SharedText {
  std::vector<TrainBatches::Source> sources;  // to train on
  EvaluationTokens validation;                // what is looked at of it
  Vocabulary vocabulary;
};
// Rank 0 sends the text that it has read to all others, which read none: theirs cannot be another
// one. Tokenized text to train on each rank maps by itself; throws CommonError where one finds
// another than rank 0 there.
SharedText share_text(const TrainJob& job, const RunText& text, Communicator& world);
SharedText receive_text(const TrainJob& job, Communicator& world);

}  // namespace attnres
