// The command line, written out: for man, for shells and as docs/commands.md. help_text.h has it
// for a terminal.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

namespace attnres {

// Writes attnres.1 and attnres-COMMAND.1 for all commands into the folder.
void write_man_pages(const CLI::App& app, const std::filesystem::path& folder);

// docs/commands.md.
std::string commands_page(const CLI::App& app);

// Scripts that complete commands, options and their values. They know the names of recipes and
// studies that come with the program where these are found now.
std::string bash_completion(const CLI::App& app);
std::string zsh_completion(const CLI::App& app);
std::string fish_completion(const CLI::App& app);

}  // namespace attnres
