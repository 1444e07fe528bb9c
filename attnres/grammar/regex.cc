#include "attnres/grammar/regex.h"

#include <fmt/core.h>

#include <utility>
#include <vector>

#include "attnres/grammar/ebnf_text.h"
#include "attnres/grammar/regex_reader.h"
#include "attnres/support/error.h"

namespace attnres {
namespace {

std::string ebnf_characters(const Characters& characters) {
  if (!is_one(characters)) return ebnf_class(characters);
  return ebnf_text(std::u32string(1, characters[0].first));
}

std::string ebnf_counts(const RegexNode& node) {
  if (node.most != RegexNode::kUnbounded) return fmt::format("{{{},{}}}", node.least, node.most);
  if (node.least <= 1) return node.least == 0 ? "*" : "+";
  return fmt::format("{{{},}}", node.least);
}

std::string ebnf(const RegexNode& node) {
  std::string result;
  switch (node.kind) {
    case RegexNode::Kind::characters:
      return ebnf_characters(node.characters);
    case RegexNode::Kind::sequence:
      for (const RegexNode& part : node.parts) {
        result += part.kind == RegexNode::Kind::choice ? "(" + ebnf(part) + ") " : ebnf(part) + " ";
      }
      return result.empty() ? "\"\"" : result;
    case RegexNode::Kind::choice:
      for (const RegexNode& part : node.parts) result += (result.empty() ? "" : " | ") + ebnf(part);
      return result;
    case RegexNode::Kind::repetition:
      result = ebnf(node.parts[0]);
      if (node.parts[0].kind != RegexNode::Kind::characters) result = "(" + result + ")";
      return result + ebnf_counts(node);
  }
  fail("no such part of an expression");
}

RegexNode text_node(std::string_view ascii) {
  std::vector<RegexNode> parts;
  for (const char c : ascii) {
    const auto character = static_cast<char32_t>(c);
    parts.push_back({.kind = RegexNode::Kind::characters, .characters = {{character, character}}});
  }
  return joined(RegexNode::Kind::sequence, std::move(parts));
}

std::string json_escape(char32_t c) {
  constexpr std::string_view kCharacters = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  const size_t known = kCharacters.find(static_cast<char>(c));
  if (known != kCharacters.npos) return {'\\', kLetters[known]};
  return fmt::format("\\u{:04x}", static_cast<uint32_t>(c));
}

// How a JSON string has the same text: escaped only where it has to be. A class leaves out what
// would be escaped, unless nothing else is in it.
RegexNode in_json(RegexNode node) {
  static const Characters kEscaped = {{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
  for (RegexNode& part : node.parts) part = in_json(std::move(part));
  if (node.kind != RegexNode::Kind::characters) return node;
  Characters unescaped = characters_without(node.characters, kEscaped);
  if (!unescaped.empty()) return {.kind = node.kind, .characters = std::move(unescaped)};
  std::vector<RegexNode> choices;
  for (const auto& [first, last] : node.characters) {
    for (char32_t c = first; c <= last; ++c) choices.push_back(text_node(json_escape(c)));
  }
  return joined(RegexNode::Kind::choice, std::move(choices));
}

std::string grammar(const RegexNode& node) {
  return "root ::= " + ebnf(node) + "\n";
}

}  // namespace

std::string regex_grammar(std::string_view expression) {
  return grammar(read_regex(expression));
}

std::string json_pattern(std::string_view expression) {
  return grammar(in_json(read_regex(expression)));
}

}  // namespace attnres
