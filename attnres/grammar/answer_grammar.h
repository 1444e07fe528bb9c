// What an answer has to be. No tensor library.
#pragma once

#include <string>
#include <vector>

namespace attnres {

// A part of an answer that may be anything, as a model's thought is. Marks are written with the
// names of control tokens.
struct FreePart {
  std::string begin = {};  // the mark that begins it; empty: the answer begins within it
  std::string end = {};    // the one that ends it; empty: it goes on to the answer's end
  bool may_end = false;    // the answer may also end within it

  bool operator==(const FreePart&) const = default;
};

struct AnswerGrammar {
  enum class Kind {
    json_object,  // any
    json_schema,  // JSON that a schema describes
    regex,        // a text that a regular expression matches as a whole
    choice,       // one of some texts
    ebnf,         // what the rule "root" of a grammar makes
    nothing,      // there is none: the answer is one of the free parts that go on to its end
  };
  Kind kind = Kind::json_object;
  std::string text = {};                  // the schema, the expression or the grammar
  std::vector<std::string> choices = {};  // of kind choice
  // What may come before it: each once, in this order.
  std::vector<FreePart> free_parts = {};

  bool operator==(const AnswerGrammar&) const = default;
};

}  // namespace attnres
