// The command attnres: shows help, for which libtorch's tenths of a second would be too long, and
// starts the program for everything else.
#include <fmt/core.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "app/command_text.h"
#include "app/help_text.h"
#include "app/launcher/commands_json.h"
#include "attnres/support/error.h"
#include "attnres/support/program.h"

namespace attnres {
namespace {

bool is_help_flag(std::string_view word) {
  return word == "-h" || word == "--help";
}

const CommandText* find_command(const ProgramText& text, std::string_view name) {
  for (const CommandGroup& group : text.groups) {
    for (const CommandText& command : group.commands) {
      if (command.name == name) return &command;
    }
  }
  return nullptr;
}

// What plain questions for help are answered with. Others are the program's, as are mistakes.
std::optional<std::string> answer(const std::vector<std::string_view>& words) {
  if (words.empty() || words.size() > 2 || commands_json().empty()) return std::nullopt;
  if (words == std::vector<std::string_view>{"--version"}) return "attnres " ATTNRES_VERSION "\n";
  const bool help = words[0] == "help";
  const bool of_all = words.size() == 1 && (help || is_help_flag(words[0]));
  const bool of_one = words.size() == 2 && (help || is_help_flag(words[1]));
  if (!of_all && !of_one) return std::nullopt;
  const auto text = Json::parse(commands_json()).get<ProgramText>();
  if (of_all) return help_text(text);
  const CommandText* command = find_command(text, is_help_flag(words[1]) ? words[0] : words[1]);
  return command == nullptr ? std::nullopt : std::optional(help_text(*command));
}

int fail(std::string_view what) {
  const std::string line = fmt::format("attnres: error: {}: {}\n", what, std::strerror(errno));
  std::fputs(line.c_str(), stderr);  // where that cannot be written either, nobody is told
  return kFailedCode;
}

int show(const std::string& text) {
  std::signal(SIGPIPE, SIG_DFL);  // a reader that stops reading ends this quietly
  std::signal(SIGXFSZ, SIG_IGN);  // a file that reaches the limit on its size fails
  errno = EIO;
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    return fail("cannot write to standard output");
  }
  return 0;
}

// How long the program's threads spin when they wait for each other.
//
// libgomp lets them spin 300,000 turns, several milliseconds, before they sleep. With two programs
// on the same cores each spins away the time in which the thread that it waits for could run, and
// both become many times slower. kSpins is long enough that nothing is lost alone
// (records/two-programs-at-once.md). libgomp reads it when it is loaded. Users who set
// GOMP_SPINCOUNT or OMP_WAIT_POLICY get what they set.
void limit_spinning() {
  constexpr const char* kSpins = "10000";
  if (std::getenv("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", kSpins, /*overwrite=*/0);
}

// Also where /proc is not mounted.
std::filesystem::path own_path() {
  std::error_code none;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", none);
  if (!path.empty()) return path;
  const auto* given = reinterpret_cast<const char*>(getauxval(AT_EXECFN));  // NOLINT: it is one
  return std::filesystem::canonical(given, none);
}

// The program lies beside this one.
int start_program(char** argv) {
  const std::filesystem::path self = own_path(), program = self.parent_path() / "attnres-program";
  limit_spinning();
  errno = ENOENT;
  if (!self.empty()) execv(program.c_str(), argv);
  return fail("cannot start " + program.string());
}

int launch(int argc, char** argv) {
  if (argc > 0) set_program(argv[0]);
  const std::vector<std::string_view> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  if (const auto text = answer(words)) return show(*text);
  return start_program(argv);
}

}  // namespace
}  // namespace attnres

int main(int argc, char** argv) {
  return attnres::launch(argc, argv);
}
