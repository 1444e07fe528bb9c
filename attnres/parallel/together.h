// What the ranks of a run do together, where one of them may fail.
#pragma once

#include <functional>
#include <string>

#include "attnres/parallel/communicator.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {

// What all ranks throw alike, so that one of them may say it.
class CommonFailure : public Error {
 public:
  using Error::Error;
};

// All ranks call it, each with its work, which waits for no other rank. Returns when all are done.
// Throws CommonFailure on every rank where the work of one has thrown: what the lowest of them did.
void do_together(Communicator& world, const std::function<void()>& work);

// Ends all ranks (Communicator::abort) where this one's work throws anything but CommonFailure.
void or_end_all(Communicator& world, const std::function<void()>& work);

// All ranks call it, each with what all must have alike. Throws CommonFailure on every rank where
// another's differs from rank 0's: `problem`, the differences, and `advice` on a line of its own.
void require_alike(Communicator& world, const Json& own, const std::string& problem,
                   const std::string& advice = "");

// What require_alike lists. On every rank, how the others' differ from
// rank 0's: a line for each rank and key, after a line break; empty where none does.
std::string differences_between_ranks(Communicator& world, const Json& own);

}  // namespace attnres
