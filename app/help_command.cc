// The help subcommand.
#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/help.h"
#include "app/help_text.h"
#include "app/options.h"
#include "attnres/support/error.h"
#include "attnres/support/program.h"

namespace attnres {
namespace {

struct HelpOptions {
  std::string command, man_folder, shell;
  bool json = false, markdown = false;
};

std::string completion_for(const CLI::App& app, const std::string& shell) {
  if (shell == "bash") return bash_completion(app);
  return shell == "zsh" ? zsh_completion(app) : fish_completion(app);
}

void run_help(const CLI::App& app, const HelpOptions& options) {
  const std::vector<std::string> known = names_of_commands(app);
  const std::string& name = options.command;
  require_usage(name.empty() || std::find(known.begin(), known.end(), name) != known.end(),
                "{}; see {} --help", unknown_command(app, name), program());
  if (!options.man_folder.empty()) {
    write_man_pages(app, options.man_folder);
  } else if (!options.shell.empty()) {
    fmt::print("{}", completion_for(app, options.shell));
  } else if (options.json) {
    fmt::print("{}\n", Json(text_of_program(app)).dump(1));
  } else if (options.markdown) {
    fmt::print("{}", commands_page(app));
  } else {
    fmt::print("{}", name.empty() ? help_text(text_of_program(app))
                                  : help_text(text_of_command(*app.get_subcommand(name))));
  }
}

}  // namespace

void add_help_command(CLI::App& app) {
  CLI::App& command = *app.add_subcommand(
      "help",
      "Show what a command does, and its options. Or write the same as man pages, as completions "
      "for a shell, or as a page.");
  const auto options = std::make_shared<HelpOptions>();
  CLI::Option* name = add_option(command, "command COMMAND", options->command,
                                 "the command (default: all of them)");
  CLI::Option* man = add_path(command, "--man DIR", options->man_folder,
                              "write a man page for each command into this folder")
                         ->excludes(name);
  CLI::Option* shell =
      add_option(
          command, "--completion SHELL", options->shell,
          "print a script that completes commands and options in this shell: bash, zsh, fish")
          ->check(one_word_of({"bash", "zsh", "fish"}))
          ->excludes(name)
          ->excludes(man);
  CLI::Option* json =
      command
          .add_flag("--json", options->json, "print commands, options and examples for programs")
          ->excludes(name)
          ->excludes(man)
          ->excludes(shell);
  command.add_flag("--markdown", options->markdown, "print docs/commands.md")
      ->excludes(name)
      ->excludes(man)
      ->excludes(shell)
      ->excludes(json);
  command.footer(
      "cmake --install puts man pages and completions where man and the shells find them.\n\n"
      "Examples:\n"
      "  attnres help train\n"
      "  attnres help --man ~/.local/share/man/man1\n"
      "  attnres help --completion bash > ~/.local/share/bash-completion/completions/attnres");
  command.callback([&app, options] { run_help(app, *options); });
}

}  // namespace attnres
