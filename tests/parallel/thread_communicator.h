// Ranks that are threads of one process: what runs under MPI, without it.
#pragma once

#include <functional>

#include "attnres/parallel/communicator.h"

namespace attnres {

// Runs `work` on `size` threads at once, each a rank, and returns when all have ended. What a rank
// throws ends the others too, and is thrown here: that of the first that failed. Throws Error as
// well where all ranks wait for each other, each of them in its wait, or a message was never
// received.
void run_on_threads(int size, const std::function<void(Communicator&)>& work);

}  // namespace attnres
