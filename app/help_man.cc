// Man pages: roff with the macros of man(7).
#include <fmt/core.h>

#include <sstream>

#include "app/command_line.h"
#include "app/help.h"
#include "attnres/support/build_info.h"
#include "attnres/support/file.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

// A text that roff shows as it is.
std::string in_roff(const std::string& text) {
  std::string roff;
  bool begins = true;  // a line, where . and ' begin a request
  for (const char c : text) {
    if (begins && (c == '.' || c == '\'')) roff += "\\&";
    begins = c == '\n';
    switch (c) {
      case '\\':
        roff += "\\e";
        break;
      case '-':
        roff += "\\-";
        break;
      case '\'':
        roff += "\\(aq";
        break;
      case '`':
        roff += "\\(ga";
        break;
      case '^':
        roff += "\\(ha";
        break;
      case '~':
        roff += "\\(ti";
        break;
      default:
        roff += c;
    }
  }
  return roff;
}

std::string bold(const std::string& text) {
  return "\\fB" + in_roff(text) + "\\fR";
}
std::string italic(const std::string& text) {
  return "\\fI" + in_roff(text) + "\\fR";
}

// Paragraphs that empty lines part.
std::string paragraphs(const std::string& text) {
  std::string roff;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    roff += line.empty() ? ".PP\n" : in_roff(line) + "\n";
  }
  return roff;
}

std::string names_of(const OptionText& option) {
  std::string names;
  for (const std::string& name : option.names) names += (names.empty() ? "" : ", ") + bold(name);
  if (!option.value.empty()) names += (names.empty() ? "" : " ") + italic(option.value);
  return option.takes_many ? names + " ..." : names;
}

std::string entries(const std::vector<OptionText>& options) {
  std::string roff;
  for (const OptionText& option : options) {
    const std::string text = option.text + (option.required ? " (required)" : "");
    roff += ".TP\n" + names_of(option) + "\n" + in_roff(text) + "\n";
  }
  return roff;
}

std::string sections_of_options(const CommandText& command) {
  std::string roff;
  if (!command.arguments.empty()) roff += ".SH ARGUMENTS\n" + entries(command.arguments);
  roff += ".SH OPTIONS\n";
  for (const OptionGroup& group : command.options) {
    if (command.options.size() > 1) roff += ".SS " + in_roff(group.title) + "\n";
    roff += entries(group.options);
  }
  return roff;
}

std::string section_of_commands(const CLI::App& app) {
  std::string roff = ".SH COMMANDS\n";
  for (const CommandGroup& group : groups_of_commands(app)) {
    roff += ".SS " + in_roff(group.title) + "\n";
    for (const CommandText& command : group.commands) {
      roff += ".TP\n" + bold("attnres-" + command.name) + "(1)\n" + in_roff(command.summary) + "\n";
    }
  }
  return roff;
}

std::string section_of_exit_codes() {
  std::string roff = ".SH EXIT STATUS\n";
  for (const ExitCode& exit : kExitCodes) {
    roff += fmt::format(".TP\n{}\n{}\n", exit.code, in_roff(exit.meaning));
  }
  return roff;
}

std::string page_name(const CommandText& command) {
  return command.name.empty() ? "attnres" : "attnres-" + command.name;
}

// `commands`: the section of the program's page that lists them.
std::string man_page(const CommandText& command, const std::string& commands) {
  std::string summary = command.summary;
  if (summary.ends_with('.')) summary.pop_back();
  std::string roff = fmt::format(".TH {} 1 \"\" \"attnres {}\" \"attnres\"\n",
                                 in_roff(page_name(command)), program_version());
  roff += ".SH NAME\n" + in_roff(page_name(command)) + " \\- " + in_roff(summary) + "\n";
  roff += ".SH SYNOPSIS\n" + bold("attnres") + " " + in_roff(command.usage()) + "\n";
  if (!command.details.empty()) roff += ".SH DESCRIPTION\n" + in_roff(command.details) + "\n";
  roff += commands + sections_of_options(command);
  if (!command.notes.empty()) roff += ".SH NOTES\n" + paragraphs(command.notes);
  if (command.name.empty()) roff += section_of_exit_codes();
  if (!command.examples.empty()) {
    roff += ".SH EXAMPLES\n.nf\n" + in_roff(command.examples) + "\n.fi\n";
  }
  roff += ".SH SEE ALSO\n";
  return roff + (command.name.empty() ? bold("attnres-help") : bold("attnres")) + "(1)\n";
}

}  // namespace

void write_man_pages(const CLI::App& app, const std::filesystem::path& folder) {
  make_folder(folder);
  const auto write = [&](const CommandText& command, const std::string& commands) {
    write_file(folder / (page_name(command) + ".1"), man_page(command, commands));
  };
  write(text_of_command(app), section_of_commands(app));
  for (const CommandGroup& group : groups_of_commands(app)) {
    for (const CommandText& command : group.commands) write(command, /*commands=*/"");
  }
}

}  // namespace attnres
