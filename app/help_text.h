// What --help shows: as wide as the terminal, with commands as they would be typed. Examples stand
// as they are, however wide.
#pragma once

#include <string>

#include "app/command_text.h"

namespace attnres {

std::string help_text(const CommandText& command);
std::string help_text(const ProgramText& text);  // of all commands

}  // namespace attnres
