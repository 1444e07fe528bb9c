// Starts processes as a user does.
#pragma once

#include <fmt/core.h>

#include <string>

#include "tests/app/program.h"

namespace attnres::testing {

// A line for run_shell: `command` by so many processes. MPI libraries leak a little at their end.
inline std::string mpirun(int processes, const std::string& command) {
  return fmt::format(
      "ASAN_OPTIONS=\"$ASAN_OPTIONS:detect_leaks=0\" OMP_NUM_THREADS=1 "
      "mpirun --allow-run-as-root --oversubscribe -n {} {}",
      processes, command);
}

}  // namespace attnres::testing
