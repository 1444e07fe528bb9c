// The command that started this program, for commands that it prints to be typed next.
#pragma once

#include <string>
#include <string_view>

namespace attnres {

// Keeps the word that stood first on the command line (argv[0]). Called once, before threads start.
void set_program(std::string_view typed);

// That word as a shell takes it: "build/attnres" where that was typed. "attnres" where the program
// lies on the PATH, and in other programs, which have not set it. "python3 -m attnres" where Python
// started it, which then gives that as the word.
std::string program();

// A text in which commands are written "attnres .." (at the begin of a line, or after mpirun's
// options), with these as they would be typed.
std::string as_typed(std::string_view text);

// What starts `processes` of this program together, up to the program's name: "mpirun -n 2", with
// what OpenMPI asks for as root (as in containers), or where there are fewer cores than processes.
std::string mpirun_command(long processes);

}  // namespace attnres
