#include "attnres/grammar/grammar_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string_view>

#include "attnres/grammar/answer_schema.h"
#include "attnres/grammar/regex.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"

namespace attnres {
namespace {

// Blanks between two pieces of JSON at most: enough for indented lines.
constexpr int kMostBlanks = 16;

xgrammar::Grammar grammar_of_schema(const Json& schema) {
  return xgrammar::Grammar::FromJSONSchema(schema.dump(), /*any_whitespace=*/true, /*indent=*/{},
                                           /*separators=*/{}, /*strict_mode=*/false, kMostBlanks);
}

xgrammar::Grammar grammar_of_schema(const std::string& text, const StepBudget& budget) {
  const auto check_part = [&](const Json& part) {
    grammar_of_schema(part);
    refuse_warnings(budget);
  };
  return grammar_of_schema(answer_schema(parse_json(text, "the schema"), check_part));
}

std::string in_quotes(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      result += {'\\', c};
    } else if (byte < 0x20 || byte == 0x7f) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += c;
    }
  }
  return result + "\"";
}

xgrammar::Grammar grammar_of_choices(const std::vector<std::string>& choices) {
  require(!choices.empty(), "expected a text or more to choose from");
  std::string root = "root ::= ";
  for (const std::string& choice : choices) root += in_quotes(choice) + " | ";
  root.resize(root.size() - 3);
  return xgrammar::Grammar::FromEBNF(root);
}

bool is_name_character(char c) {
  return c == '_' || c == '-' || c == '.' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9');
}

// Where a text, a class of characters or a comment ends that begins at a place.
size_t end_of_literal(std::string_view text, size_t place) {
  const char closing = text[place] == '"' ? '"' : text[place] == '[' ? ']' : '\n';
  for (size_t i = place + 1; i < text.size(); ++i) {
    if (text[i] == '\\' && closing != '\n') {
      ++i;
    } else if (text[i] == closing) {
      return i + 1;
    }
  }
  return text.size();
}

// What XGrammar's form of grammars has beside rules: tokens by number, which could be control
// tokens, and what says of rules how to sample. The answer would not be that of the grammar.
void refuse_extensions(std::string_view text) {
  constexpr std::array<std::string_view, 4> kOfTokens = {"Token", "ExcludeToken", "TagDispatch",
                                                         "TokenTagDispatch"};
  const auto next = [&](size_t place) {
    return text.substr(std::min(text.find_first_not_of(" \t", place), text.size()));
  };
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"' || text[i] == '[' || text[i] == '#') {
      const bool of_rule = text[i] == '[';
      i = end_of_literal(text, i);
      require(!of_rule || !next(i).starts_with("::="),
              "attributes of rules, in [] before ::=, are not taken");
    } else if (is_name_character(text[i])) {
      const size_t begin = i;
      while (i < text.size() && is_name_character(text[i])) ++i;
      const std::string_view name = text.substr(begin, i - begin);
      const bool of_tokens = std::find(kOfTokens.begin(), kOfTokens.end(), name) != kOfTokens.end();
      require(!of_tokens || !next(i).starts_with("("), "{}() is not taken; write texts", name);
    } else {
      ++i;
    }
  }
}

}  // namespace

xgrammar::Grammar make_grammar(const AnswerGrammar& answer, const StepBudget& budget) {
  switch (answer.kind) {
    case AnswerGrammar::Kind::json_object:
      return grammar_of_schema(R"({"type": "object"})", budget);
    case AnswerGrammar::Kind::json_schema:
      return grammar_of_schema(answer.text, budget);
    case AnswerGrammar::Kind::regex:
      return xgrammar::Grammar::FromEBNF(regex_grammar(answer.text));
    case AnswerGrammar::Kind::choice:
      return grammar_of_choices(answer.choices);
    case AnswerGrammar::Kind::ebnf:
      refuse_extensions(answer.text);
      return xgrammar::Grammar::FromEBNF(answer.text);
    case AnswerGrammar::Kind::nothing:
      break;
  }
  fail("no such kind of grammar");
}

void refuse_warnings(const StepBudget& budget) {
  if (!budget.warnings().empty()) throw_error(budget.warnings().front());
}

}  // namespace attnres
