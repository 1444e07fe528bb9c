// The program: attnres COMMAND [OPTIONS].
//
// Exit codes: 0 done, 1 failed, 2 used wrongly, 130 interrupted.
#include <c10/util/Exception.h>
#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "app/commands.h"
#include "attnres/support/build_info.h"
#include "attnres/support/error.h"
#include "attnres/support/memory.h"
#include "attnres/support/nearest.h"

namespace attnres {
namespace {

int report(std::string_view message, int exit_code) {
  std::fflush(stdout);
  fmt::print(stderr, "attnres: error: {}\n", message);
  return exit_code;
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::vector<std::string> names_of_options(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) names.push_back("--" + option->get_lnames()[0]);
  }
  return names;
}

// What is wrong with the command line, with the nearest known word for one that is unknown.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen[0];
  const std::string help =
      fmt::format("; see attnres {}--help", chosen.empty() ? "" : command.get_name() + " ");
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    const bool is_option = word.starts_with('-');
    if (!is_option && !chosen.empty()) continue;
    const std::string near =
        nearest(word.substr(0, word.find('=')),
                is_option ? names_of_options(command) : names_of_commands(app));
    return fmt::format("unknown {} {}: did you mean {}?{}", is_option ? "option" : "command", word,
                       near, help);
  }
  return first_line(error.what()) + help;
}

int run(int argc, char** argv) {
  CLI::App app(
      "Attention Residuals (arXiv 2603.15031): train, run and study Transformers whose sublayers\n"
      "choose their own inputs from everything computed before them.",
      "attnres");
  app.set_version_flag("--version", fmt::format("attnres {}", program_version()));
  app.require_subcommand(1);
  add_train_command(app);
  add_eval_command(app);
  add_score_command(app);
  add_generate_command(app);
  add_inspect_command(app);
  add_mechanisms_command(app);
  add_import_command(app);
  add_export_command(app);
  add_retrofit_command(app);
  add_report_command(app);
  add_doctor_command(app);
  add_verify_command(app);
  add_vectors_command(app);
  add_diagnose_command(app);
  app.footer("attnres COMMAND --help shows a command's options, with examples.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return report(explain(app, e), 2);
  }
  // Output that did not fit on the disk is an error too.
  require(std::fflush(stdout) == 0 && !std::ferror(stdout), "cannot write the output: {}",
          std::strerror(errno));
  return 0;
}

}  // namespace
}  // namespace attnres

int main(int argc, char** argv) {
  attnres::keep_freed_memory();
  // A reader that stops reading (attnres ... | head) ends the program quietly.
  std::signal(SIGPIPE, SIG_DFL);
  try {
    return attnres::run(argc, argv);
  } catch (const attnres::UsageError& e) {
    return attnres::report(e.what(), 2);
  } catch (const attnres::Interrupted& e) {
    fmt::print(stderr, "attnres: {}\n", e.what());
    return 130;
  } catch (const c10::Error& e) {
    return attnres::report(attnres::first_line(e.what_without_backtrace()), 1);
  } catch (const std::exception& e) {
    return attnres::report(e.what(), 1);
  }
}
