// Completions for bash, zsh and fish.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include "app/command_line.h"
#include "app/help.h"
#include "app/options.h"
#include "attnres/depth/mechanism.h"
#include "attnres/support/shell.h"

namespace attnres {
namespace {

constexpr const char* kWrittenBy = "# Written by attnres help --completion.\n";

// What may stand in the place of an option's value.
struct ValueWords {
  std::vector<std::string> words;
  bool files = false, folders = false;  // these too
  bool separated_by_commas = false;
};

// Of the files that come with the program, what --recipe and study take.
std::vector<std::string> names_of_recipes(const char* folder_in_recipes) {
  namespace fs = std::filesystem;
  std::vector<std::string> names;
  const std::optional<fs::path> recipes = find_shared("recipes");
  if (!recipes) return names;
  for (const fs::path& file : json_files(*recipes / folder_in_recipes)) {
    names.push_back(file.stem());
  }
  return names;
}

std::vector<std::string> names_of_mechanisms() {
  std::vector<std::string> names;
  for (const Mechanism& mechanism : mechanisms()) names.push_back(mechanism.text.name);
  return names;
}

// By what the value is called.
ValueWords words_of(const CLI::App& app, const OptionText& option) {
  const std::string& value = option.value;
  if (value == "FILE" || value == "PATH") return {.words = {}, .files = true};
  if (value == "DIR" || value == "RUN") return {.words = {}, .folders = true};
  if (value == "RECIPE") return {.words = names_of_recipes(""), .files = true};
  if (value == "STUDY") return {.words = names_of_recipes("studies"), .files = true};
  if (value == "MECHANISM") return {.words = names_of_mechanisms()};
  if (value == "MECHANISM,...") {
    return {.words = names_of_mechanisms(), .separated_by_commas = true};
  }
  if (value == "COMMAND") return {.words = names_of_commands(app)};
  return {.words = option.choices};
}

std::string joined_words(const std::vector<std::string>& words) {
  return fmt::to_string(fmt::join(words, " "));
}

// The first part of a text, for a line beside the option.
std::string in_short(const std::string& text) {
  size_t end = text.size();
  for (const char* stop : {"; ", ": ", ". ", " ("}) end = std::min(end, text.find(stop));
  return text.substr(0, end);
}

std::string without_stop(const std::string& sentence) {
  return sentence.ends_with('.') ? sentence.substr(0, sentence.size() - 1) : sentence;
}

std::vector<OptionText> all_options(const CommandText& command) {
  std::vector<OptionText> options;
  for (const OptionGroup& group : command.options) {
    options.insert(options.end(), group.options.begin(), group.options.end());
  }
  return options;
}

std::vector<std::string> names_of_options(const CommandText& command) {
  std::vector<std::string> names;
  for (const OptionText& option : all_options(command)) {
    names.insert(names.end(), option.names.begin(), option.names.end());
  }
  return names;
}

std::vector<CommandText> all_commands(const CLI::App& app) {
  std::vector<CommandText> commands;
  for (const CommandGroup& group : groups_of_commands(app)) {
    commands.insert(commands.end(), group.commands.begin(), group.commands.end());
  }
  return commands;
}

// bash. Files are left to readline, which knows how they are quoted.
constexpr const char* kBashFunction = R"bash(
_attnres() {
  local command=${COMP_WORDS[1]} current=${COMP_WORDS[COMP_CWORD]} value='' given=0 kind words
  local at=$((COMP_CWORD - 1))
  local before=${COMP_WORDS[at]}
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    mapfile -t COMPREPLY < <(compgen -W "${_attnres_options[attnres]}" -- "$current")
    return
  fi
  if [[ $current == = ]]; then
    current=''
    before='='
  fi
  # The option whose value this is: the last one, unless it has all that it takes.
  while ((at > 1)) && [[ ${COMP_WORDS[at]} != --* ]]; do
    [[ ${COMP_WORDS[at]} == = ]] || ((given += 1))
    ((at -= 1))
  done
  ((at > 1)) && value=${_attnres_values["$command ${COMP_WORDS[at]}"]-}
  [[ $value == one* ]] && ((given > 0)) && value=''
  if [[ $current == -* && $before != = ]]; then
    value=''
  elif [[ -z $value ]]; then
    value=${_attnres_values["$command"]-}
  fi
  [[ -n $value ]] || value="one word ${_attnres_options["$command"]-}"
  read -r _ kind words <<<"$value"
  # Of words with commas between them, the last.
  mapfile -t COMPREPLY < <(
    compgen -P "${current%"${current##*,}"}" -W "$words" -- "${current##*,}"
  )
  case $kind in
    file) compopt -o default ;;
    folder) compopt -o dirnames ;;
  esac 2>/dev/null
}
complete -F _attnres attnres
)bash";

// "one file tiny-residual": how many values, what they are beside the words, the words.
std::string bash_values(const CLI::App& app, const OptionText& option) {
  const ValueWords values = words_of(app, option);
  return shell_quoted(fmt::format("{} {} {}", option.takes_many ? "many" : "one",
                                  values.files     ? "file"
                                  : values.folders ? "folder"
                                                   : "word",
                                  joined_words(values.words)));
}

// zsh.
constexpr const char* kZshBegin = R"zsh(
_attnres_words_or_files() {
  _alternative "words:name:($*)" 'files:file:_files'
}

_attnres() {
  local context state line
  typeset -A opt_args
  if (( CURRENT == 2 )); then
    local -a commands=(
)zsh";
constexpr const char* kZshMiddle = R"zsh(    )
    _describe command commands
    return
  fi
  shift words
  (( CURRENT-- ))
  # Another option may follow where one takes more values.
  if [[ $words[CURRENT] == -* ]]; then
    words=($words[1] $words[CURRENT])
    CURRENT=2
  fi
  case $words[1] in
)zsh";
constexpr const char* kZshEnd = R"zsh(  esac
}

if [[ $funcstack[1] == _attnres ]]; then
  _attnres "$@"
else
  compdef _attnres attnres
fi
)zsh";

std::string zsh_action(const CLI::App& app, const OptionText& option) {
  const ValueWords values = words_of(app, option);
  const std::string words = joined_words(values.words);
  if (values.files) return words.empty() ? "_files" : "{_attnres_words_or_files " + words + "}";
  if (values.folders) return "_files -/";
  if (values.separated_by_commas) return "{_values -s , name " + words + "}";
  return words.empty() ? " " : "(" + words + ")";
}

std::string zsh_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// A line of _arguments.
std::string zsh_spec(const std::string& spec) {
  return " \\\n        " + shell_quoted(spec);
}

std::string zsh_case(const CLI::App& app, const CommandText& command) {
  std::string script = fmt::format("    ({})\n      _arguments", command.name);
  for (const OptionText& option : all_options(command)) {
    for (const std::string& name : option.names) {
      std::string spec = option.takes_many || option.repeats ? "*" + name : name;
      if (!option.value.empty()) spec += '=';
      spec += "[" + zsh_text(in_short(option.text)) + "]";
      if (option.takes_many) spec += ":*-*";  // up to the next option
      if (!option.value.empty()) spec += ":" + option.value + ":" + zsh_action(app, option);
      script += zsh_spec(spec);
    }
  }
  for (const OptionText& argument : command.arguments) {
    script += zsh_spec(fmt::format("{}:{}:{}", argument.takes_many ? "*" : "1", argument.value,
                                   zsh_action(app, argument)));
  }
  return script + "\n      ;;\n";
}

// fish.
constexpr const char* kFishFunctions = R"fish(
# Whether this is the command.
function __attnres_command
    set -l words (commandline -opc)
    test (count $words) -ge 2; and test "$words[2]" = $argv[1]
end

# Whether this is the command, and its last option this one.
function __attnres_after
    set -l words (commandline -opc)
    set -l options (string match -- '--*' $words)
    __attnres_command $argv[1]; and test "$options[-1]" = $argv[2]
end

complete -c attnres -f
)fish";

std::string fish_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// Options of `complete` for what a value may be.
std::string fish_values(const CLI::App& app, const OptionText& option) {
  const ValueWords values = words_of(app, option);
  if (values.folders) return " -f -a '(__fish_complete_directories)'";
  const std::string form = values.files ? " -F" : " -f";
  const std::string words = joined_words(values.words);
  if (values.separated_by_commas) {
    const std::string list = fish_quoted(fmt::format("string split ' ' '{}'", words));
    return form + " -a " + fish_quoted(fmt::format("(__fish_complete_list , {})", list));
  }
  return words.empty() ? form : form + " -a " + fish_quoted(words);
}

std::string fish_line(const std::string& condition, const std::string& rest) {
  return "complete -c attnres -n " + fish_quoted(condition) + rest + "\n";
}

std::string fish_option(const OptionText& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  return text + " -d " + fish_quoted(in_short(option.text));
}

std::string fish_command(const CLI::App& app, const CommandText& command) {
  std::string script =
      "\n" + fish_line("__fish_use_subcommand",
                       " -a " + command.name + " -d " + fish_quoted(without_stop(command.summary)));
  const std::string condition = "__attnres_command " + command.name;
  for (const OptionText& option : all_options(command)) {
    const std::string value = option.value.empty() ? "" : " -r" + fish_values(app, option);
    script += fish_line(condition, fish_option(option) + value);
    if (option.takes_many) {
      const std::string after = fmt::format("__attnres_after {} {}", command.name, option.names[0]);
      script += fish_line(after, fish_values(app, option));
    }
  }
  for (const OptionText& argument : command.arguments) {
    script += fish_line(condition, fish_values(app, argument));
  }
  return script;
}

}  // namespace

std::string bash_completion(const CLI::App& app) {
  std::string options =
      fmt::format("  [attnres]='{} --help --version'\n", joined_words(names_of_commands(app)));
  std::string values;
  for (const CommandText& command : all_commands(app)) {
    options += fmt::format("  [{}]='{}'\n", command.name, joined_words(names_of_options(command)));
    for (const OptionText& argument : command.arguments) {
      values += fmt::format("  [{}]={}\n", command.name, bash_values(app, argument));
    }
    for (const OptionText& option : all_options(command)) {
      if (option.value.empty()) continue;
      values +=
          fmt::format("  ['{} {}']={}\n", command.name, option.names[0], bash_values(app, option));
    }
  }
  return fmt::format(
      "{}declare -gA _attnres_options=(\n{})\n"
      "declare -gA _attnres_values=(\n{})\n{}",
      kWrittenBy, options, values, kBashFunction);
}

std::string zsh_completion(const CLI::App& app) {
  std::string commands, cases;
  for (const CommandText& command : all_commands(app)) {
    commands += "      " + shell_quoted(command.name + ":" + without_stop(command.summary)) + "\n";
    cases += zsh_case(app, command);
  }
  return std::string("#compdef attnres\n") + kWrittenBy + kZshBegin + commands +
         "      '--help:Show this help' '--version:Show the version'\n" + kZshMiddle + cases +
         kZshEnd;
}

std::string fish_completion(const CLI::App& app) {
  std::string script = std::string(kWrittenBy) + kFishFunctions;
  for (const OptionText& option : all_options(text_of_command(app))) {
    script += fish_line("__fish_use_subcommand", fish_option(option));
  }
  for (const CommandText& command : all_commands(app)) script += fish_command(app, command);
  return script;
}

}  // namespace attnres
