// The program: attnres COMMAND [options].
#pragma once

namespace attnres {

// What main does. Takes over how signals are handled, and what happens where memory runs out.
// Returns 0 done, 1 failed, 2 used wrongly, 3 training diverged, 130 interrupted (support/error.h).
int program_main(int argc, char** argv);

// Ends the process, at once: taking down what libtorch registers takes a tenth of a second.
[[noreturn]] void end_program(int exit_code);

}  // namespace attnres
