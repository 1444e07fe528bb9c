// What the ranks of a run do together, where one of them may fail.
#pragma once

#include <functional>

#include "attnres/parallel/communicator.h"
#include "attnres/support/error.h"

namespace attnres {

// What all ranks throw alike, so that one of them may say it.
class CommonFailure : public Error {
 public:
  using Error::Error;
};

// All ranks call it, each with its work, which waits for no other rank. Returns when all are done.
// Throws CommonFailure on every rank where the work of one has thrown: what the lowest of them did.
void do_together(Communicator& world, const std::function<void()>& work);

}  // namespace attnres
