#include "attnres/grammar/grammar_text.h"

#include <nlohmann/json.hpp>

#include "attnres/grammar/answer_schema.h"
#include "attnres/grammar/ebnf_text.h"
#include "attnres/grammar/gbnf.h"
#include "attnres/grammar/regex.h"
#include "attnres/support/error.h"
#include "attnres/support/json.h"
#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// Between two pieces of JSON: models that like them would fill an answer with blanks.
constexpr int kMostBlanks = 1;

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

xgrammar::Grammar grammar_of_choices(const std::vector<std::string>& choices) {
  require(!choices.empty(), "expected a text or more to choose from");
  std::string root = "root ::= ";
  for (const std::string& choice : choices) {
    require_utf8(choice, "a choice");
    root += ebnf_text(characters_in(choice)) + " | ";
  }
  root.resize(root.size() - 3);
  return xgrammar::Grammar::FromEBNF(root);
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
      return xgrammar::Grammar::FromEBNF(gbnf_grammar(answer.text));
    case AnswerGrammar::Kind::nothing:
      break;
  }
  fail("no such kind of grammar");
}

void refuse_warnings(const StepBudget& budget) {
  if (!budget.warnings().empty()) throw_error(budget.warnings().front());
}

}  // namespace attnres
