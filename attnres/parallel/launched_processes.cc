#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "attnres/parallel/mpi_communicator.h"

namespace attnres {
namespace {

// The first of these variables that is set, or `otherwise`.
int number_in_environment(std::initializer_list<const char*> names, int otherwise) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name)) return std::max(otherwise, std::atoi(value));
  }
  return otherwise;
}

}  // namespace

// As OpenMPI's mpirun says it, MPICH's and Intel's, and Slurm's srun.
int launched_processes() {
  return number_in_environment({"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}, 1);
}

int launched_on_this_machine() {
  return number_in_environment(
      {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_TASKS_PER_NODE"}, 1);
}

int launched_rank() {
  return number_in_environment({"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"}, 0);
}

}  // namespace attnres
