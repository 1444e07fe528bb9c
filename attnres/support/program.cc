#include "attnres/support/program.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <thread>

#include "attnres/support/shell.h"

namespace attnres {
namespace {

constexpr std::string_view kName = "attnres";

std::string& typed_word() {
  static std::string word(kName);
  return word;
}

// How many processes "mpirun -n N attnres" starts, and 0 for a line that begins otherwise.
long launched_by(std::string_view line) {
  constexpr std::string_view kLauncher = "mpirun -n ";
  if (!line.starts_with(kLauncher)) return 0;
  line.remove_prefix(kLauncher.size());
  long processes = 0;
  const char* end = std::from_chars(line.data(), line.data() + line.size(), processes).ptr;
  line.remove_prefix(static_cast<size_t>(end - line.data()));
  return line.starts_with(" attnres ") ? processes : 0;
}

std::string line_as_typed(std::string_view line) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  std::string typed(line.substr(0, indent));
  line.remove_prefix(indent);
  if (const long processes = launched_by(line)) {
    typed += mpirun_command(processes) + " ";
    line.remove_prefix(line.find(kName));
  }
  if (line.starts_with("attnres ")) {
    typed += program();
    line.remove_prefix(kName.size());
  }
  return typed.append(line);
}

}  // namespace

void set_program(std::string_view typed) {
  if (!typed.empty()) typed_word() = typed;
}

std::string program() {
  constexpr std::string_view kAsModule = " -m attnres";
  std::string word = typed_word();
  if (!word.ends_with(kAsModule)) return for_shell(word);
  word.resize(word.size() - kAsModule.size());
  return for_shell(word).append(kAsModule);
}

std::string as_typed(std::string_view text) {
  std::string typed;
  while (true) {
    const size_t end = std::min(text.find('\n'), text.size());
    typed += line_as_typed(text.substr(0, end));
    if (end == text.size()) return typed;
    typed += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string mpirun_command(long processes) {
  return fmt::format(
      "mpirun {}{}-n {}", ::geteuid() == 0 ? "--allow-run-as-root " : "",
      processes > static_cast<long>(std::thread::hardware_concurrency()) ? "--oversubscribe " : "",
      processes);
}

}  // namespace attnres
