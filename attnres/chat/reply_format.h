// How a model writes an answer: its thought, what it says, and its calls of tools.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attnres {

// An argument that is written by itself: `begin` key `head_end` value `end`.
struct ArgumentForm {
  std::string begin, head_end, end;
  std::string value_begin = {};    // of the value, where it does not begin at once
  std::string key_attribute = {};  // that has the key; empty: the head is the key
  // The attribute by which a value is a text and no JSON, and what it then says; empty: the
  // tool's schema tells.
  std::string text_attribute = {}, text_says = {};
  bool in_lines = false;  // the value stands in lines of its own
};

// A call: `begin` head `head_end` arguments `end`.
struct CallForm {
  std::string section = {}, section_end = {};  // around all calls of an answer, where there is such
  std::string begin, head_end, end;            // without head_end: {"name", "arguments"} as JSON
  std::string name_attribute = {};             // that has the name; empty: the head is the name
  bool head_is_id = false;                     // "functions.NAME:NUMBER"
  std::optional<ArgumentForm> argument = {};   // else all of them are a JSON object
  std::string object = {}, object_end = {};    // around such an object, where there may be either
};

// Texts that are empty do not occur.
struct ReplyFormat {
  std::string thought = {}, thought_end = {};
  std::string answer = {}, answer_end = {};  // around what is said
  std::optional<CallForm> calls = {};
};

// Whether some mark of it has this part.
bool has_mark(const ReplyFormat& format, std::string_view part);

// Told by what the model's chat template has in it: the forms of Kimi K2 and K3, DeepSeek R1 to V4,
// GLM 4, Qwen and Hermes; nothing of others, whose answers are text as it comes.
ReplyFormat reply_format_of(std::string_view jinja);

}  // namespace attnres
