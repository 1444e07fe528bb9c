// Renders what a template says.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attnres/chat/jinja/syntax.h"

namespace attnres::jinja {

// Renders once, within a Meter of the same thread.
class Interpreter {
 public:
  using Names = std::map<std::string, Value, std::less<>>;

  explicit Interpreter(Meter& meter);
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;
  ~Interpreter();

  // Throws Error naming the line.
  Text render(const Statements& statements, Names variables);

 private:
  struct Scope {
    std::shared_ptr<Scope> outer;
    Names names;
  };
  class Within;
  class EndOfLoop;
  enum class Flow { goes_on, breaks, continues };

  Flow execute(const Statements& statements, Text& out);
  Flow execute(const Statement& statement, Text& out);
  Flow execute_captured(const Statement& statement, Text& out);  // its body is no output
  Flow execute_for(const Statement& loop, Values all, int level, Text& out);
  Values chosen_items(const Statement& loop, Values items);
  void assign(const Target& target, const Value& value);
  Value macro(const Statement& macro, std::string name);
  Value call_macro(const Statement& macro, const std::shared_ptr<Scope>& scope,
                   const Arguments& arguments);

  Value evaluate(const Expression& expression);
  Value evaluate_parts(const Expression& expression);
  Value evaluate_comparison(const Expression& expression);
  Value evaluate_logic(const Expression& expression);
  Value evaluate_item(const Expression& expression);
  Value evaluate_condition(const Expression& expression);
  Value evaluate_call(const Expression& expression);
  Value evaluate_filter(const Expression& expression);
  Value evaluate_test(const Expression& expression);
  Value evaluate_slice(const Expression& expression);
  Value attribute(const Value& object, const std::string& name);
  Arguments arguments(const Expression& call, Value first);
  void add_arguments(const Expression& call, Arguments& all);
  Value call(const Value& function, const Arguments& arguments);
  const Value* find(std::string_view name) const;
  Value make_namespace(const Arguments& arguments);

  Meter& meter_;
  int line_ = 1;
  std::shared_ptr<Scope> scope_;
  Value filtered_;  // the text of a block that filters are applied to
  // What may hold itself, until the end.
  std::vector<std::shared_ptr<NamespaceNode>> spaces_;
  std::vector<std::shared_ptr<Scope>> closures_;
};

}  // namespace attnres::jinja
