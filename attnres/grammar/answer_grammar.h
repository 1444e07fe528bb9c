// What an answer has to be. No tensor library.
#pragma once

#include <string>
#include <vector>

namespace attnres {

struct AnswerGrammar {
  enum class Kind {
    json_object,  // any
    json_schema,  // JSON that a schema describes
    regex,        // a text that a regular expression matches as a whole
    choice,       // one of some texts
    ebnf,         // what the rule "root" of a grammar makes
  };
  Kind kind = Kind::json_object;
  std::string text = {};                  // the schema, the expression or the grammar
  std::vector<std::string> choices = {};  // of kind choice
  // What comes first is free, and ends with this text, as a model's thought does; empty: nothing
  // comes first. Control tokens are written by their names.
  std::string begins_after = {};

  bool operator==(const AnswerGrammar&) const = default;
};

}  // namespace attnres
