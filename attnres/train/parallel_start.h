// How the processes of a run begin: with the same job, and rank 0's text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "attnres/parallel/communicator.h"
#include "attnres/support/error.h"
#include "attnres/train/train_job.h"

namespace attnres {

// What all ranks throw alike, so that one of them may say it.
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
  std::vector<int32_t> tokens;  // to train on
  int64_t vocab_size = 0;
};
// Rank 0 sends what it has read to all others, which read none: theirs cannot be another one.
void send_text(const std::vector<int32_t>& tokens, int64_t vocab_size, Communicator& world);
SharedText receive_text(Communicator& world);

}  // namespace attnres
