// In the place of mpi_communicator.cc in a build without MPI.
#include "attnres/parallel/mpi_communicator.h"
#include "attnres/support/error.h"

namespace attnres {

bool has_mpi() {
  return false;
}

std::unique_ptr<Communicator> start_mpi() {
  fail(
      "this build has no MPI: install an MPI library (Debian: libopenmpi-dev openmpi-bin), then "
      "configure with -DATTNRES_MPI=ON and build again");
}

}  // namespace attnres
