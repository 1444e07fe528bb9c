// Forms that an answer has to have: JSON schemas, regular expressions, choices and grammars.
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/grammar/answer_grammars.h"
#include "attnres/support/json.h"
#include "attnres/text/bytes.h"
#include "tests/fuzz/fuzz_inputs.h"
#include "tests/fuzz/fuzz_target.h"

namespace attnres::grammar_fuzz {
namespace {

using namespace testing;
using Kind = AnswerGrammar::Kind;

// The first byte says the kind.
AnswerGrammar grammar_of(std::string_view input) {
  AnswerGrammar answer;
  if (input.empty()) return answer;
  switch (input[0]) {
    case 's':
      answer.kind = Kind::json_schema;
      break;
    case 'r':
      answer.kind = Kind::regex;
      break;
    case 'c':
      answer.kind = Kind::choice;
      break;
    case 'e':
      answer.kind = Kind::ebnf;
      break;
    default:
      answer.kind = Kind::json_object;
  }
  answer.text = input.substr(1);
  if (answer.kind == Kind::choice) answer.choices = {answer.text, "other"};
  return answer;
}

// The first token that is allowed, a few times.
void follow(const TokenConstraint& constraint) {
  const auto state = constraint.start();
  for (int step = 0; step < 16; ++step) {
    const AllowedTokens& allowed = state->allowed();
    int32_t token = 0;
    while (token < 256 && !allowed[token]) ++token;
    if (token == 256) return;
    state->accept(token);
  }
}

void run(std::string_view input) {
  static const ByteTokenizer tokenizer;
  static AnswerGrammars grammars(tokenizer);
  follow(*grammars.prepare(grammar_of(input)));
}

std::vector<std::string> seeds() {
  std::vector<std::string> seeds = {
      R"(s{"type": "object", "properties": {"a": {"type": "integer", "minimum": 1},
            "b": {"enum": ["x", null]}}, "required": ["a"], "additionalProperties": false})",
      R"(s{"$defs": {"t": {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 2}},
            "$ref": "#/$defs/t"})",
      R"(s{"anyOf": [{"type": "string", "pattern": "^a+$"}, {"type": "string",
            "format": "date"}, {"const": 1}]})",
      "cyes",
      "eroot ::= (\"a\" | [b-d]{1,3} other?)+\nother ::= \"x\" # remark",
      "j"};
  const Json cases = parse_json(repository_file("tests/fixtures/regex_cases.json"), "seeds");
  for (size_t i = 0; i < cases["cases"].size(); i += 20) {
    seeds.push_back("r" + cases["cases"][i][0].get<std::string>());
  }
  return seeds;
}

const ListedFuzzTarget kListed({"grammar", run, seeds});

}  // namespace
}  // namespace attnres::grammar_fuzz
