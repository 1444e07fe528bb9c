#include "app/help_text.h"

#include <fmt/core.h>

#include "attnres/support/program.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

constexpr size_t kNarrow = 72;  // columns; below, explanations begin further left
constexpr size_t kCommandColumn = 14;

std::string entry(const std::string& name, const std::string& text, size_t column) {
  std::string line = "  " + name;
  if (line.size() + 2 > column) {
    line += '\n';
    line.append(column, ' ');
  } else {
    line.resize(column, ' ');
  }
  return line + wrapped(text, text_columns(), column) + "\n";
}

std::string options_text(const std::string& title, const std::vector<OptionText>& options) {
  if (options.empty()) return "";
  std::string text = "\n" + title + ":\n";
  for (const OptionText& option : options) {
    text += entry(option.shown(), option.text + (option.required ? " (required)" : ""),
                  text_columns() < kNarrow ? 8 : 30);
  }
  return text;
}

std::string commands_text(const std::vector<CommandGroup>& groups) {
  std::string text = "\n";
  for (const CommandGroup& group : groups) {
    text += group.title + ":\n";
    for (const CommandText& command : group.commands) {
      text += entry(command.name, command.summary, kCommandColumn);
    }
  }
  return text;
}

std::string text_of_page(const CommandText& command, const std::string& entries) {
  const size_t columns = text_columns();
  std::string text = wrapped(command.summary + "\n" + command.details, columns) + "\n\n";
  text += wrapped(fmt::format("Usage: {} {}", program(), command.usage()), columns) + "\n";
  text += entries;
  if (!command.notes.empty()) text += "\n" + wrapped(command.notes, columns) + "\n";
  if (!command.examples.empty()) {
    text += fmt::format("\n{}:\n{}\n", command.examples_title, as_typed(command.examples));
  }
  return text;
}

}  // namespace

std::string help_text(const CommandText& command) {
  std::string entries = options_text("Arguments", command.arguments);
  for (const OptionGroup& group : command.options) {
    entries += options_text(group.title, group.options);
  }
  return text_of_page(command, entries);
}

std::string help_text(const ProgramText& text) {
  return text_of_page(text.program, commands_text(text.groups));
}

}  // namespace attnres
