#include "app/command_line.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include "attnres/support/nearest.h"
#include "attnres/support/terminal.h"

namespace attnres {
namespace {

constexpr const char* kWithoutGroup = "Options";  // how CLI11 calls the group of such options

// In one line.
std::string flowing(const std::string& text) {
  return wrapped(text, std::numeric_limits<size_t>::max());
}

// CLI11 shows "TYPE:{f32,bf16}" where a validator has a description.
void split_type_name(const std::string& type_name, OptionText& option) {
  const size_t colon = type_name.find(":{");
  option.value = type_name.substr(0, colon);
  if (colon == std::string::npos) return;
  std::istringstream words(type_name.substr(colon + 2, type_name.find('}') - colon - 2));
  for (std::string word; std::getline(words, word, ',');) option.choices.push_back(word);
}

OptionText text_of_option(const CLI::Option& option) {
  OptionText text;
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (option.get_type_size() != 0) split_type_name(option.get_type_name(), text);
  text.text = flowing(option.get_description());
  if (!option.get_default_str().empty()) {
    text.text += fmt::format(" (default: {})", option.get_default_str());
  }
  text.required = option.get_required();
  const bool has_many = option.get_expected_max() == CLI::detail::expected_max_vector_size;
  text.takes_many = has_many && option.get_allow_extra_args();
  text.repeats = has_many && !option.get_allow_extra_args();
  return text;
}

// Notes, and after an empty line "Examples:" with lines that begin with spaces.
void split_footer(const std::string& footer, CommandText& command) {
  const size_t examples = footer.find(":\n  ");
  if (examples == std::string::npos) {
    command.notes = footer;
    return;
  }
  const size_t line_end = footer.rfind('\n', examples);
  const size_t title = line_end == std::string::npos ? 0 : line_end + 1;
  command.notes = footer.substr(0, title);
  while (command.notes.ends_with('\n')) command.notes.pop_back();
  command.examples_title = footer.substr(title, examples - title);
  command.examples = footer.substr(examples + 2);
}

OptionGroup& group_of(std::vector<OptionGroup>& groups, const std::string& title) {
  const auto found = std::find_if(groups.begin(), groups.end(),
                                  [&](const OptionGroup& group) { return group.title == title; });
  return found != groups.end() ? *found : groups.emplace_back(OptionGroup{title, {}});
}

std::vector<OptionGroup> groups_of_options(const CLI::App& command) {
  std::vector<OptionGroup> groups = {{kWithoutGroup, {}}};
  const CLI::Option* help = command.get_help_ptr();
  for (const CLI::Option* option : command.get_options()) {
    if (!option->nonpositional() || option == help) continue;
    group_of(groups, option->get_group()).options.push_back(text_of_option(*option));
  }
  if (help != nullptr) groups[0].options.push_back(text_of_option(*help));
  return groups;
}

}  // namespace

CommandText text_of_command(const CLI::App& command) {
  CommandText text;
  if (command.get_parent() != nullptr) text.name = command.get_name();
  text.group = command.get_group();
  const std::string description = flowing(command.get_description());
  const size_t end = description.find(". ");
  text.summary = description.substr(0, end == std::string::npos ? end : end + 1);
  if (end != std::string::npos) text.details = description.substr(end + 2);
  for (const CLI::Option* option : command.get_options()) {
    if (option->get_positional()) text.arguments.push_back(text_of_option(*option));
  }
  text.options = groups_of_options(command);
  split_footer(command.get_footer(), text);
  return text;
}

std::vector<CommandGroup> groups_of_commands(const CLI::App& app) {
  std::vector<CommandGroup> groups;
  for (const CLI::App* command : app.get_subcommands({})) {
    CommandText text = text_of_command(*command);
    if (groups.empty() || groups.back().title != text.group) groups.push_back({text.group, {}});
    groups.back().commands.push_back(std::move(text));
  }
  return groups;
}

ProgramText text_of_program(const CLI::App& app) {
  return {text_of_command(app), groups_of_commands(app)};
}

std::vector<std::string> names_of_commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  return names;
}

std::string unknown_command(const CLI::App& app, const std::string& word) {
  return fmt::format("unknown command {}{}", word, did_you_mean(word, names_of_commands(app)));
}

}  // namespace attnres
