#include "app/command_text.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

namespace attnres {
namespace {

std::string usage_of_argument(const OptionText& argument) {
  const std::string value = argument.value + (argument.takes_many ? "..." : "");
  return argument.required ? value : "[" + value + "]";
}

}  // namespace

std::string OptionText::shown() const {
  std::string text = fmt::to_string(fmt::join(names, ", "));
  if (!value.empty()) text += (names.empty() ? "" : " ") + value;
  return takes_many && !value.ends_with("...") ? text + " ..." : text;
}

std::string CommandText::usage() const {
  if (name.empty()) return "COMMAND [options] | --help | --version";
  std::string text = name;
  for (const OptionText& argument : arguments) text.append(" ").append(usage_of_argument(argument));
  for (const OptionGroup& group : options) {
    for (const OptionText& option : group.options) {
      if (option.required) text.append(" ").append(option.shown());
    }
  }
  return text + " [options]";
}

void to_json(Json& json, const OptionText& text) {
  json = {{"names", text.names},    {"value", text.value},       {"choices", text.choices},
          {"text", text.text},      {"required", text.required}, {"takes_many", text.takes_many},
          {"repeats", text.repeats}};
}
void from_json(const Json& json, OptionText& text) {
  json.at("names").get_to(text.names);
  json.at("value").get_to(text.value);
  json.at("choices").get_to(text.choices);
  json.at("text").get_to(text.text);
  json.at("required").get_to(text.required);
  json.at("takes_many").get_to(text.takes_many);
  json.at("repeats").get_to(text.repeats);
}

void to_json(Json& json, const OptionGroup& text) {
  json = {{"title", text.title}, {"options", text.options}};
}
void from_json(const Json& json, OptionGroup& text) {
  json.at("title").get_to(text.title);
  json.at("options").get_to(text.options);
}

void to_json(Json& json, const CommandText& text) {
  json = {{"name", text.name},           {"group", text.group},
          {"summary", text.summary},     {"details", text.details},
          {"arguments", text.arguments}, {"options", text.options},
          {"notes", text.notes},         {"examples_title", text.examples_title},
          {"examples", text.examples}};
}
void from_json(const Json& json, CommandText& text) {
  json.at("name").get_to(text.name);
  json.at("group").get_to(text.group);
  json.at("summary").get_to(text.summary);
  json.at("details").get_to(text.details);
  json.at("arguments").get_to(text.arguments);
  json.at("options").get_to(text.options);
  json.at("notes").get_to(text.notes);
  json.at("examples_title").get_to(text.examples_title);
  json.at("examples").get_to(text.examples);
}

void to_json(Json& json, const CommandGroup& text) {
  json = {{"title", text.title}, {"commands", text.commands}};
}
void from_json(const Json& json, CommandGroup& text) {
  json.at("title").get_to(text.title);
  json.at("commands").get_to(text.commands);
}

void to_json(Json& json, const ProgramText& text) {
  json = {{"program", text.program}, {"groups", text.groups}};
}
void from_json(const Json& json, ProgramText& text) {
  json.at("program").get_to(text.program);
  json.at("groups").get_to(text.groups);
}

}  // namespace attnres
