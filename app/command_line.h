// The command line as its definitions have it.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "app/command_text.h"

namespace attnres {

// Of the program, or of one of its commands.
CommandText text_of_command(const CLI::App& command);

// The program's commands in their groups, both in the order in which they were added.
std::vector<CommandGroup> groups_of_commands(const CLI::App& app);

ProgramText text_of_program(const CLI::App& app);

std::vector<std::string> names_of_commands(const CLI::App& app);

// What to say of a command that there is not.
std::string unknown_command(const CLI::App& app, const std::string& word);

}  // namespace attnres
