// The command line in words: what --help, man pages, completions and docs/commands.md are made of.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "attnres/support/json.h"

namespace attnres {

// An option, or an argument, which stands without dashes.
struct OptionText {
  std::vector<std::string> names;    // "-h", "--help"; none of an argument
  std::string value;                 // what it takes, "FILE"; empty of a flag
  std::vector<std::string> choices;  // the words that it takes, where its definition has them
  std::string text;                  // what it does, with its default
  bool required = false;
  bool takes_many = false;  // --data A B
  bool repeats = false;     // --stop A --stop B

  // "-h, --help", "--data PATH ..."
  std::string shown() const;
};

struct OptionGroup {
  std::string title;
  std::vector<OptionText> options;
};

struct CommandText {
  std::string name;     // "train"; empty of the program itself
  std::string group;    // of commands: "Train"
  std::string summary;  // the first sentence of its description
  std::string details;  // the rest of it
  std::vector<OptionText> arguments;
  std::vector<OptionGroup> options;  // those that were given no group come first
  std::string notes;                 // paragraphs
  std::string examples_title;        // "Examples"
  std::string examples;              // lines, each after two spaces; those that go on end in a \ .

  // What is typed after the program's name: "watch DIR [options]".
  std::string usage() const;
};

struct CommandGroup {
  std::string title;
  std::vector<CommandText> commands;
};

struct ExitCode {
  int code;  // support/error.h
  const char* meaning;
};
inline constexpr std::array kExitCodes = {
    ExitCode{0, "done"}, ExitCode{1, "failed"}, ExitCode{2, "used wrongly"},
    ExitCode{3, "training has diverged"}, ExitCode{130, "interrupted, with what was done saved"}};

// All of it: `attnres help --json`.
struct ProgramText {
  CommandText program;
  std::vector<CommandGroup> groups;  // of commands
};

// Their members, by name.
void to_json(Json& json, const OptionText& text);
void from_json(const Json& json, OptionText& text);
void to_json(Json& json, const OptionGroup& text);
void from_json(const Json& json, OptionGroup& text);
void to_json(Json& json, const CommandText& text);
void from_json(const Json& json, CommandText& text);
void to_json(Json& json, const CommandGroup& text);
void from_json(const Json& json, CommandGroup& text);
void to_json(Json& json, const ProgramText& text);
void from_json(const Json& json, ProgramText& text);

}  // namespace attnres
