// Ranks that are processes, started by `mpirun -n 4 attnres ..` or a cluster's `srun`, over MPI. In
// a build without MPI (-DATTNRES_MPI=OFF) there are none, and who asks for them is told so.
#pragma once

#include <memory>

#include "attnres/parallel/communicator.h"

namespace attnres {

bool has_mpi();  // in this build

// How many processes a launcher says it has started together with this one: 1 without a launcher.
int launched_processes();
// Those on this machine.
int launched_on_this_machine();
// Which of them this one is: 0 without a launcher.
int launched_rank();

// All of them. Once in a process, whose MPI ends with the communicator; those split off it must go
// before. Threads may take turns in using it. Throws Error in a build without MPI.
//
// A large message moves while both sides are in calls of MPI; while the sender computes only where
// the receiver can fetch it alone (shared memory with cross-memory attach, RDMA).
std::unique_ptr<Communicator> start_mpi();

}  // namespace attnres
