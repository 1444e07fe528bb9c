// docs/commands.md.
#include <fmt/core.h>

#include "app/command_line.h"
#include "app/help.h"

namespace attnres {
namespace {

// A text that Markdown shows as it is, in a table too.
std::string in_markdown(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<' || c == '*' || c == '|' || c == '`' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string code_block(const std::string& text) {
  return "```text\n" + text + "\n```\n\n";
}

std::string table_of(const std::string& title, const std::vector<OptionText>& options) {
  if (options.empty()) return "";
  std::string page = fmt::format("| {} | |\n| --- | --- |\n", in_markdown(title));
  for (const OptionText& option : options) {
    page += fmt::format("| `{}` | {}{} |\n", option.shown(), in_markdown(option.text),
                        option.required ? " (required)" : "");
  }
  return page + "\n";
}

// Of each line without the two spaces before it.
std::string without_indent(const std::string& lines) {
  std::string text;
  for (size_t begin = 0; begin < lines.size();) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string line = lines.substr(begin, end - begin);
    text += (begin > 0 ? "\n" : "") + (line.starts_with("  ") ? line.substr(2) : line);
    begin = end + 1;
  }
  return text;
}

std::string section_of(const CommandText& command) {
  std::string page = fmt::format("### attnres {}\n\n{}\n\n", command.name,
                                 in_markdown(command.summary + " " + command.details));
  if (command.details.empty()) page.erase(page.size() - 3, 1);
  page += code_block("attnres " + command.usage());
  page += table_of("Arguments", command.arguments);
  for (const OptionGroup& group : command.options) page += table_of(group.title, group.options);
  if (!command.notes.empty()) page += in_markdown(command.notes) + "\n\n";
  if (!command.examples.empty()) {
    page += command.examples_title + ":\n\n" + code_block(without_indent(command.examples));
  }
  return page;
}

}  // namespace

std::string commands_page(const CLI::App& app) {
  const CommandText program = text_of_command(app);
  const std::vector<CommandGroup> groups = groups_of_commands(app);
  std::string page =
      "# The commands\n\n"
      "Written by `attnres help --markdown`; do not edit. `attnres COMMAND --help` shows the same "
      "of "
      "one\ncommand; man pages and completions for bash, zsh and fish have it too (`attnres help "
      "--help`).\n\n";
  page += code_block("attnres " + program.usage());
  page += "| command | what it does |\n| --- | --- |\n";
  for (const CommandGroup& group : groups) {
    page += fmt::format("| **{}** | |\n", in_markdown(group.title));
    for (const CommandText& command : group.commands) {
      page += fmt::format("| [{0}](#attnres-{0}) | {1} |\n", command.name,
                          in_markdown(command.summary));
    }
  }
  page += "\n| exit code | |\n| --- | --- |\n";
  for (const ExitCode& exit : kExitCodes) {
    page += fmt::format("| {} | {} |\n", exit.code, in_markdown(exit.meaning));
  }
  page += '\n';
  for (const OptionGroup& group : program.options) page += table_of(group.title, group.options);
  for (const CommandGroup& group : groups) {
    page += "## " + group.title + "\n\n";
    for (const CommandText& command : group.commands) page += section_of(command);
  }
  page.pop_back();  // the file ends with one line break
  return page;
}

}  // namespace attnres
