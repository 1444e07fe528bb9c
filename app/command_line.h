// The program: attnres COMMAND [OPTIONS].
#pragma once

namespace attnres {

// What main does. Takes over the handling of signals and of memory that runs out.
// Returns 0 done, 1 failed, 2 used wrongly, 3 training diverged, 130 interrupted (support/error.h).
int run_command_line(int argc, char** argv);

}  // namespace attnres
