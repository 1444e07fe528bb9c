// Ranks that are processes, started by `mpirun -n 4 attnres ..` or a cluster's `srun`, over MPI.
// What is linked to MPI is a library of its own, libattnres_mpi.so, which is loaded where processes
// ask for each other: one process alone runs where there is no MPI.
#pragma once

#include <memory>

#include "attnres/parallel/communicator.h"

namespace attnres {

// Whether MPI can be loaded here; it then is.
bool has_mpi();

// How many processes a launcher says it has started together with this one: 1 without a launcher.
int launched_processes();
// Those on this machine.
int launched_on_this_machine();
// Which of them this one is: 0 without a launcher.
int launched_rank();

// All of them. Once in a process, whose MPI ends with the communicator; those split off it must go
// before. Threads may take turns in using it. Throws Error in a build without MPI
// (-DATTNRES_MPI=OFF), and where no MPI library can be loaded.
//
// A large message moves while both sides are in calls of MPI; while the sender computes only where
// the receiver can fetch it alone (shared memory with cross-memory attach, RDMA).
std::unique_ptr<Communicator> start_mpi();

}  // namespace attnres
