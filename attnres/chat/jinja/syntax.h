// What a template says, as a tree.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attnres/chat/jinja/value.h"

namespace attnres::jinja {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

struct Expression {
  enum class Kind {
    constant,    // constant
    name,        // word
    list,        // parts
    tuple,       // parts
    dict,        // parts: key, value, key, value ..
    chain,       // parts, with words between them, from left to right: + - * / // % **
    comparison,  // the same, as Python chains them
    join,        // parts: ~
    both,        // parts: and
    either,      // parts: or
    negation,    // parts[0]: not
    minus,       // parts[0]
    plus,        // parts[0]
    condition,   // parts: if, then, else (null: undefined)
    attribute,   // parts[0].word
    item,        // parts[0][parts[1]]
    slice,       // parts[0][parts[1]:parts[2]:parts[3]], null where left out
    call,        // parts[0](parts[1] ..), words as `arguments` has them
    filter,      // parts[0] | word(parts[1] ..)
    test,        // parts[0] is word(parts[1] ..)
  };

  Kind kind;
  int line;
  std::string word = "";
  // Between parts, an operator; of arguments, each one's name, empty of one by its place, * and **
  // of those that are spread.
  std::vector<std::string> words = {};
  std::vector<ExpressionPtr> parts = {};
  Value constant = {};
  int depth = 1;  // of what it is made of, within each other
};

struct Statement;
using Statements = std::vector<Statement>;

// What is assigned to: a name, a name of a namespace, or as many of these as an item has parts.
struct Target {
  std::string name = "";
  std::string attribute = "";
  std::vector<Target> parts = {};  // none of a name
};

struct Parameter {
  std::string name;
  ExpressionPtr otherwise;  // null where it has no default
};

struct Statement {
  enum class Kind {
    text,      // word
    output,    // value
    if_,       // if value body, else otherwise
    for_,      // target, value, condition, body, otherwise
    set,       // target, value
    set_body,  // target, filters, body
    macro,     // word, parameters, body
    call,      // value, parameters, body
    filter,    // filters, body
    group,     // body, in a scope of its own
    with,      // targets and values, body
    break_,
    continue_,
  };

  Kind kind;
  int line;
  std::string word = "";
  Target target = {};
  ExpressionPtr value = nullptr;
  ExpressionPtr condition = nullptr;
  // A chain of filters, whose innermost operand is null.
  ExpressionPtr filters = nullptr;
  std::vector<Parameter> parameters = {};
  std::vector<std::pair<Target, ExpressionPtr>> assignments = {};
  Statements body = {};
  Statements otherwise = {};
  bool recursive = false;  // a loop
  // Whether a macro's body speaks of `caller`, `kwargs` and `varargs`, and so takes these.
  bool takes_caller = false, takes_named = false, takes_more = false;
};

}  // namespace attnres::jinja
