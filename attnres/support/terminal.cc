#include "attnres/support/terminal.h"

#include <fmt/core.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <sstream>

namespace attnres {
namespace {

constexpr size_t kWithoutTerminal = 100, kFewest = 40;

// Zeros of what is no terminal.
winsize terminal_size(int descriptor) {
  winsize size = {};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size : winsize{};
}

std::optional<size_t> unless_zero(size_t size) {
  return size > 0 ? std::optional<size_t>(size) : std::nullopt;
}

}  // namespace

std::optional<size_t> terminal_columns(int descriptor) {
  return unless_zero(terminal_size(descriptor).ws_col);
}

std::optional<size_t> terminal_lines(int descriptor) {
  return unless_zero(terminal_size(descriptor).ws_row);
}

size_t text_columns() {
  size_t columns = 0;
  if (const char* set = std::getenv("COLUMNS")) {
    std::from_chars(set, set + std::strlen(set), columns);
  }
  if (columns == 0) columns = terminal_columns(STDOUT_FILENO).value_or(kWithoutTerminal);
  return std::max(columns, kFewest);
}

bool shows_color(int descriptor) {
  const auto variable = [](const char* name) -> std::string_view {
    const char* value = std::getenv(name);
    return value != nullptr ? value : "";
  };
  return ::isatty(descriptor) == 1 && variable("TERM") != "dumb" && variable("NO_COLOR").empty();
}

size_t characters(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

std::string wrapped(std::string_view text, size_t columns, size_t indent) {
  std::string line_break = "\n";
  line_break.append(indent, ' ');
  const size_t room = columns > indent ? columns - indent : 1;
  std::string out;
  size_t column = 0;
  bool joins = true;  // whether words go on in the line that stands
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line[0] == ' ') {
      if (!out.empty()) out += line_break;
      out += line;
      joins = false;
      continue;
    }
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const size_t length = characters(word);
      if (!joins || (column > 0 && column + 1 + length > room)) {
        out += line_break;
        column = 0;
        joins = true;
      } else if (column > 0) {
        out += ' ';
        ++column;
      }
      out += word;
      column += length;
    }
  }
  return out;
}

void print_wrapped(std::string_view text) {
  fmt::print("{}\n", wrapped(text, text_columns()));
}

}  // namespace attnres
