#include "app/program_main.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <sstream>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/help_text.h"
#include "app/processes.h"
#include "attnres/support/build_info.h"
#include "attnres/support/error.h"
#include "attnres/support/memory.h"
#include "attnres/support/nearest.h"
#include "attnres/support/program.h"

// There where a program looks for leaks, and where it counts coverage.
extern "C" {
[[gnu::weak]] void __lsan_do_leak_check();
[[gnu::weak]] void __gcov_dump();
}

namespace attnres {
namespace {

// Where nobody can read it any more there is nobody to tell, so nothing is thrown.
void tell(std::string_view kind, std::string_view message) {
  std::fflush(stdout);
  const std::string line = fmt::format("attnres: {}{}\n", kind, message);
  std::fwrite(line.data(), 1, line.size(), stderr);
}

int report(std::string_view message, int exit_code) {
  tell("error: ", message);
  return exit_code;
}

// What fmt could not print it threw as std::system_error; the rest fails here.
void finish_output() {
  int error = std::fflush(stdout) == 0 ? 0 : errno;
  if (error == 0 && std::ferror(stdout) != 0) error = EIO;  // earlier, and unnoticed
  require(error == 0, "cannot write to standard output: {}", std::strerror(error));
}

// What is mapped (tokens, weights) has lost its end, or its disk fails. Only what a signal's
// handler may call.
extern "C" void end_without_mapped_file(int) {
  constexpr std::string_view kLine =
      "\nattnres: error: a file that is mapped into memory has become shorter meanwhile, or its "
      "disk "
      "cannot be read; restore it. A run goes on from its last checkpoint (--resume)\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kLine.data(), kLine.size());
  ::_exit(1);
}

// What is closed would be the number of the next file that is opened, and output would land there.
// Opened the wrong way round, they fail as they should.
void keep_standard_streams_taken() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) != -1) continue;
    ::open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

std::terminate_handler terminate_otherwise = nullptr;

// Where memory runs out in a destructor (those of JSON ask for some) nothing can be caught any
// more.
void end_without_memory() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    constexpr std::string_view kMessage = "attnres: error: memory ran out\n";
    (void)!::write(STDERR_FILENO, kMessage.data(), kMessage.size());
    std::_Exit(1);
  } catch (...) {
  }
  terminate_otherwise();
}

std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

// "--out" is "out" here: dashes are no part of what is mistyped.
std::string unknown_option(const CLI::App& command, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_lnames().empty()) names.push_back(option->get_lnames()[0]);
  }
  const std::string name = word.substr(0, word.find('='));
  std::string near =
      did_you_mean(name.substr(std::min(name.find_first_not_of('-'), name.size())), names);
  if (!near.empty()) near.insert(near.rfind(' ') + 1, "--");
  return fmt::format("unknown option {}{}", word, near);
}

// The one without dashes, as attnres watch DIR; null where the command has none.
const CLI::Option* positional_option(const CLI::App& command) {
  const auto options =
      command.get_options([](const CLI::Option* option) { return option->get_positional(); });
  return options.empty() ? nullptr : options[0];
}

// A word that the command has no place for.
std::string unexpected_word(const CLI::App& command, const std::string& word) {
  const std::string what = fmt::format("{}: unexpected {}", command.get_name(), word);
  if (const CLI::Option* one = positional_option(command)) {
    return what + fmt::format("; it takes one {}", one->get_name());
  }
  for (const auto& [option, taken] : {std::pair("--data", "text"), {"--prompt", "a prompt"}}) {
    if (command.get_option_no_throw(option) == nullptr) continue;
    return what + fmt::format("; give {} with {}", taken, option);
  }
  return what;
}

// An option that takes one value and was given another; null where none was.
const CLI::Option* option_given_twice(const CLI::App& command) {
  const auto options = command.get_options([](const CLI::Option* option) {
    return option->get_items_expected_max() == 1 && option->count() > 1;
  });
  return options.empty() ? nullptr : options[0];
}

// What is wrong with the command line.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen[0];
  const std::string help =
      fmt::format("; see {} {}--help", program(), chosen.empty() ? "" : command.get_name() + " ");
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    if (word.starts_with('-')) return unknown_option(command, word) + help;
    return (chosen.empty() ? unknown_command(app, word) : unexpected_word(command, word)) + help;
  }
  const CLI::Option* words = positional_option(command);
  const bool lacks_words = words != nullptr && words->get_required() && words->count() == 0;
  const bool lacks_some = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
  if (lacks_some && chosen.empty()) return "name a command" + help;
  if (lacks_some && lacks_words) {
    return fmt::format("{}: name {}{}", command.get_name(), words->get_description(), help);
  }
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (const CLI::Option* option = option_given_twice(command)) {
      return fmt::format("{}: is given {} times; give it once{}", option->get_name(),
                         option->count(), help);
    }
  }
  return first_line(error.what()) + help;
}

void add_commands(CLI::App& app) {
  using AddCommand = void (*)(CLI::App&);
  const std::vector<std::pair<const char*, std::vector<AddCommand>>> groups = {
      {"Train", {add_train_command, add_tokenize_command, add_watch_command}},
      {"Compare", {add_compare_command, add_study_command, add_report_command}},
      {"Look inside", {add_inspect_command, add_mechanisms_command}},
      {"Use", {add_generate_command, add_serve_command, add_eval_command, add_score_command}},
      {"Models of other programs", {add_import_command, add_export_command, add_retrofit_command}},
      {"This machine, plans and help", {add_doctor_command, add_plan_command, add_help_command}},
      {"Check implementations", {add_verify_command, add_vectors_command, add_diagnose_command}}};
  for (const auto& [title, commands] : groups) {
    for (const AddCommand add : commands) {
      add(app);
      app.get_subcommands({}).back()->group(title);
    }
  }
}

int run(int argc, char** argv) {
  if (argc > 0) set_program(argv[0]);
  CLI::App app(
      "Attention Residuals (arXiv 2603.15031): train, run and study Transformers whose sublayers "
      "choose their own inputs from everything computed before them.",
      program());
  app.formatter_fn([](const CLI::App* command, const std::string&, CLI::AppFormatMode) {
    return command->get_parent() == nullptr ? help_text(text_of_program(*command))
                                            : help_text(text_of_command(*command));
  });
  app.set_help_flag("-h,--help", "show this help");
  app.set_version_flag("--version", fmt::format("attnres {}", program_version()),
                       "show the program's version");
  app.require_subcommand(1);
  add_commands(app);
  app.parse_complete_callback([&app] {
    for (const CLI::App* command : app.get_subcommands()) require_one_process(*command);
  });
  app.footer(
      "Begin with:\n"
      "  attnres doctor                   what this machine can do\n"
      "  attnres compare --data book.txt  mechanisms on your text\n"
      "  attnres COMMAND --help           its options, examples");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return report(explain(app, e), kMisusedCode);
    std::ostringstream text;
    app.exit(e, text, text);  // --help, --version
    fmt::print("{}", text.str());
  }
  finish_output();
  return 0;
}

}  // namespace

int program_main(int argc, char** argv) {
  keep_standard_streams_taken();
  keep_freed_memory();
  terminate_otherwise = std::set_terminate(end_without_memory);
  // A reader that stops reading (attnres ... | head) ends the program quietly; under an
  // InterruptGuard, after its work was saved.
  std::signal(SIGPIPE, SIG_DFL);
  std::signal(SIGBUS, end_without_mapped_file);
  // A file that reaches the limit on its size is an error of that write.
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    return run(argc, argv);
  } catch (const Interrupted& e) {
    tell("", e.what());
    return e.exit_code();
  } catch (const Error& e) {
    return report(e.what(), e.exit_code());
  } catch (const c10::Error& e) {
    return report(first_line(e.what_without_backtrace()), kFailedCode);
  } catch (const std::system_error& e) {
    if (e.code() == std::errc::broken_pipe) std::raise(SIGPIPE);
    // fmt::print throws these, and does not know where it prints.
    return report(std::ferror(stdout) != 0
                      ? "cannot write to standard output: " + e.code().message()
                      : e.what(),
                  kFailedCode);
  } catch (const std::exception& e) {
    return report(e.what(), kFailedCode);
  }
}

void end_program(int exit_code) {
  std::fflush(nullptr);
  if (__lsan_do_leak_check != nullptr) __lsan_do_leak_check();
  if (__gcov_dump != nullptr) __gcov_dump();
  std::_Exit(exit_code);
}

}  // namespace attnres
