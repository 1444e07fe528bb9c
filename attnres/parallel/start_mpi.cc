// Loads libattnres_mpi.so, which is mpi_communicator.cc.
#include <dlfcn.h>

#include "attnres/parallel/mpi_communicator.h"
#include "attnres/support/error.h"
#include "attnres/support/own_library.h"

namespace attnres {
namespace {

struct MpiLibrary {
  Communicator* (*start)() = nullptr;
  std::string problem = {};  // why there is none, and what to do
};

MpiLibrary load_mpi() {
  const std::filesystem::path path = own_library("libattnres_mpi.so");
  if (!std::filesystem::exists(path)) {
    return {.problem =
                "this build has no MPI: install an MPI library (Debian: libopenmpi-dev "
                "openmpi-bin), then configure with -DATTNRES_MPI=ON and build again"};
  }
  // RTLD_GLOBAL: OpenMPI loads parts of itself, which look for it among all that is loaded.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* const start = library != nullptr ? dlsym(library, "attnres_start_mpi") : nullptr;
  if (start == nullptr) {
    return {.problem = fmt::format(
                "MPI, by which processes talk, cannot be loaded: {}; install OpenMPI 4 or 5 "
                "(Debian: openmpi-bin), or start one process, without mpirun",
                dlerror())};
  }
  return {.start = reinterpret_cast<Communicator* (*)()>(start)};
}

const MpiLibrary& mpi_library() {
  static const MpiLibrary library = load_mpi();
  return library;
}

}  // namespace

bool has_mpi() {
  return mpi_library().start != nullptr;
}

std::unique_ptr<Communicator> start_mpi() {
  require(has_mpi(), "{}", mpi_library().problem);
  return std::unique_ptr<Communicator>(mpi_library().start());
}

}  // namespace attnres
