#include "attnres/chat/jinja/interpreter.h"

#include <algorithm>
#include <utility>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

// About what a scope that a macro keeps, or a name of a namespace, takes until the end.
constexpr int64_t kKeptBytes = 256;

// As transformers keeps templates from what Python keeps there.
void check_namespace_name(const std::string& name) {
  require(!name.starts_with('_'), "a namespace keeps no name that begins with _, got {}",
          name.substr(0, 100));
}

}  // namespace

// A scope of its own, until it is left.
class Interpreter::Within {
 public:
  Within(Interpreter& interpreter, std::shared_ptr<Scope> outer) : interpreter_(interpreter) {
    auto inner = std::make_shared<Scope>();
    inner->outer = std::move(outer);
    left_ = std::exchange(interpreter_.scope_, std::move(inner));
  }
  explicit Within(Interpreter& interpreter) : Within(interpreter, interpreter.scope_) {}
  Within(const Within&) = delete;
  Within& operator=(const Within&) = delete;
  ~Within() { interpreter_.scope_ = std::move(left_); }

 private:
  Interpreter& interpreter_;
  std::shared_ptr<Scope> left_;
};

// What a loop keeps of itself could hold it.
class Interpreter::EndOfLoop {
 public:
  explicit EndOfLoop(LoopNode& loop) : loop_(loop) {}
  EndOfLoop(const EndOfLoop&) = delete;
  EndOfLoop& operator=(const EndOfLoop&) = delete;
  ~EndOfLoop() {
    loop_.ended = true;
    loop_.changed = Value();
    loop_.again = {};
  }

 private:
  LoopNode& loop_;
};

Interpreter::Interpreter(Meter& meter) : meter_(meter), scope_(std::make_shared<Scope>()) {
  scope_->names.emplace("namespace", Value::function("namespace", [this](const Arguments& given) {
                          return make_namespace(given);
                        }));
}

Interpreter::~Interpreter() {
  for (const auto& space : spaces_) space->entries.clear();
  for (const auto& scope : closures_) scope->names.clear();
}

Text Interpreter::render(const Statements& statements, Names variables) {
  for (auto& [name, value] : variables) scope_->names[name] = std::move(value);
  Text out;
  try {
    execute(statements, out);
  } catch (const Error& e) {
    fail("line {}: {}", line_, e.what());
  }
  return out;
}

const Value* Interpreter::find(std::string_view name) const {
  for (const Scope* scope = scope_.get(); scope != nullptr; scope = scope->outer.get()) {
    spend(1);
    const auto found = scope->names.find(name);
    if (found != scope->names.end()) return &found->second;
  }
  return find_global(name);
}

Value Interpreter::make_namespace(const Arguments& arguments) {
  meter_.hold(kKeptBytes);
  auto space = std::make_shared<NamespaceNode>();
  const Value dict = make_dict(arguments);
  for (const auto& [key, value] : dict.as_dict()->entries) {
    const Text name = text_of(key);
    check_namespace_name(name.bytes());
    meter_.hold(static_cast<int64_t>(name.size()) + kKeptBytes);
    space->entries.emplace_back(name.bytes(), value);
  }
  spaces_.push_back(space);
  return Value::space(std::move(space));
}

Interpreter::Flow Interpreter::execute(const Statements& statements, Text& out) {
  const Level level(meter_);
  for (const Statement& statement : statements) {
    line_ = statement.line;
    meter_.spend(1);
    const Flow flow = execute(statement, out);
    if (flow != Flow::goes_on) return flow;
  }
  return Flow::goes_on;
}

Interpreter::Flow Interpreter::execute(const Statement& statement, Text& out) {
  using enum Statement::Kind;
  switch (statement.kind) {
    case text:
      out.append(statement.word);
      break;
    case output:
      out.append(text_of(evaluate(*statement.value)));
      break;
    case if_:
      return execute(truth(evaluate(*statement.value)) ? statement.body : statement.otherwise, out);
    case for_:
      return execute_for(statement, items_of(evaluate(*statement.value)), 1, out);
    case set:
      assign(statement.target, evaluate(*statement.value));
      break;
    case macro:
      scope_->names[statement.word] = this->macro(statement, statement.word);
      break;
    case call: {
      Arguments all;
      all.named.emplace_back("caller", this->macro(statement, "caller"));
      const Value callee = evaluate(*statement.value->parts[0]);
      add_arguments(*statement.value, all);
      out.append(text_of(this->call(callee, all)));
      break;
    }
    case set_body:
    case filter:
      return execute_captured(statement, out);
    case group:
    case with: {
      Values values;
      for (const auto& [target, value] : statement.assignments) values.push_back(evaluate(*value));
      const Within scope(*this);
      for (size_t i = 0; i < values.size(); ++i) assign(statement.assignments[i].first, values[i]);
      return execute(statement.body, out);
    }
    case break_:
      return Flow::breaks;
    case continue_:
      return Flow::continues;
  }
  return Flow::goes_on;
}

Interpreter::Flow Interpreter::execute_captured(const Statement& statement, Text& out) {
  Text text;
  {
    const Within scope(*this);
    if (const Flow flow = execute(statement.body, text); flow != Flow::goes_on) return flow;
  }
  Value body = Value::text(std::move(text));
  if (statement.filters != nullptr) {
    filtered_ = std::move(body);
    body = evaluate(*statement.filters);
  }
  if (statement.kind == Statement::Kind::filter) {
    out.append(text_of(body));
  } else {
    assign(statement.target, body);
  }
  return Flow::goes_on;
}

Values Interpreter::chosen_items(const Statement& loop, Values items) {
  if (loop.condition == nullptr) return items;
  Values chosen;
  for (Value& item : items) {
    const Within scope(*this);
    assign(loop.target, item);
    if (truth(evaluate(*loop.condition))) chosen.push_back(std::move(item));
  }
  return chosen;
}

Interpreter::Flow Interpreter::execute_for(const Statement& loop, Values all, int level,
                                           Text& out) {
  const auto state = std::make_shared<LoopNode>(chosen_items(loop, std::move(all)));
  const EndOfLoop end(*state);
  state->level = level;
  if (loop.recursive) {
    state->again = [this, &loop, level, scope = scope_](Values items) {
      const Level inner(meter_);
      const Within outer(*this, scope);
      Text text;
      execute_for(loop, std::move(items), level + 1, text);
      return Value::text(std::move(text));
    };
  }
  bool ran_to_end = false;  // any of its rounds: then there is no `else`
  for (; state->index < state->items.size(); ++state->index) {
    const Within scope(*this);
    meter_.spend(1);
    assign(loop.target, state->items[state->index]);
    scope_->names["loop"] = Value::loop(state);
    const Flow flow = execute(loop.body, out);
    if (flow == Flow::breaks) break;
    ran_to_end = ran_to_end || flow == Flow::goes_on;
  }
  if (ran_to_end) return Flow::goes_on;
  const Within scope(*this);
  return execute(loop.otherwise, out);
}

void Interpreter::assign(const Target& target, const Value& value) {
  if (!target.parts.empty()) {
    const Values parts = items_of(value);
    require(parts.size() == target.parts.size(), "expected {} values to assign, got {}",
            target.parts.size(), parts.size());
    for (size_t i = 0; i < parts.size(); ++i) assign(target.parts[i], parts[i]);
    return;
  }
  if (target.attribute.empty()) {
    scope_->names[target.name] = value;
    return;
  }
  const Value* space = find(target.name);
  require(space != nullptr && space->as_space() != nullptr, "{} is no namespace", target.name);
  if (Value* entry = space->as_space()->find(target.attribute)) {
    *entry = value;
  } else {
    check_namespace_name(target.attribute);
    meter_.hold(kKeptBytes);
    space->as_space()->entries.emplace_back(target.attribute, value);
  }
}

Value Interpreter::macro(const Statement& macro, std::string name) {
  meter_.hold(kKeptBytes);
  closures_.push_back(scope_);
  return Value::function(std::move(name),
                         [this, &macro, scope = scope_](const Arguments& arguments) {
                           return call_macro(macro, scope, arguments);
                         });
}

Value Interpreter::call_macro(const Statement& macro, const std::shared_ptr<Scope>& scope,
                              const Arguments& arguments) {
  const Level level(meter_);
  const Within inner(*this, scope);
  const auto& parameters = macro.parameters;
  if (macro.takes_caller) scope_->names["caller"] = Value::undefined("caller");
  Entries others;
  for (const auto& [name, value] : arguments.named) {
    meter_.spend(static_cast<int64_t>(parameters.size() / 4));
    const auto parameter =
        std::find_if(parameters.begin(), parameters.end(),
                     [&name = name](const Parameter& one) { return one.name == name; });
    const bool taken = parameter != parameters.end() &&
                       parameter - parameters.begin() >= std::ssize(arguments.given);
    if (taken || (name == "caller" && macro.takes_caller)) {
      scope_->names[name] = value;
    } else {
      require(macro.takes_named, "macro {} has no argument {}", macro.word, name);
      others.emplace_back(Value::text(name), value);
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    const Parameter& parameter = parameters[i];
    if (const Value* given = arguments.find(i, parameter.name)) {
      scope_->names[parameter.name] = *given;
    } else {
      scope_->names[parameter.name] =
          parameter.otherwise ? evaluate(*parameter.otherwise) : Value::undefined(parameter.name);
    }
  }
  if (macro.takes_named) scope_->names["kwargs"] = Value::dict(std::move(others));
  if (macro.takes_more) {
    scope_->names["varargs"] = Value::list(arguments.rest(parameters.size()).given, /*tuple=*/true);
  } else {
    require(arguments.given.size() <= parameters.size(),
            "macro {}: expected at most {} arguments, got {}", macro.word, parameters.size(),
            arguments.given.size());
  }
  Text text;
  execute(macro.body, text);
  return Value::text(std::move(text));
}

Value Interpreter::call(const Value& function, const Arguments& arguments) {
  if (function.is_undefined()) fail("{} is undefined", function.undefined_name());
  if (const LoopNode* loop = function.as_loop()) {
    require(loop->again != nullptr, "loop: only a recursive loop that has not ended can be called");
    const auto again = loop->again;  // the call may end it
    return again(items_of(arguments.need(0, "the items")));
  }
  require(function.as_function() != nullptr, "a {} cannot be called", function.type());
  return function.as_function()->call(arguments);
}

Value Interpreter::attribute(const Value& object, const std::string& name) {
  return find_method(object, name) != nullptr ? bound_method(object, name)
                                              : attribute_of(object, name);
}

void Interpreter::add_arguments(const Expression& call, Arguments& all) {
  for (size_t i = 0; i < call.words.size(); ++i) {
    const std::string& word = call.words[i];
    Value value = evaluate(*call.parts[i + 1]);
    if (word.empty()) {
      all.given.push_back(std::move(value));
    } else if (word == "*") {
      for (Value& item : items_of(value)) all.given.push_back(std::move(item));
    } else if (word == "**") {
      require(value.as_dict() != nullptr, "expected a dict after **, got a {}", value.type());
      for (const auto& [key, named] : value.as_dict()->entries) {
        all.named.emplace_back(text_of(key).bytes(), named);
      }
    } else {
      all.named.emplace_back(word, std::move(value));
    }
  }
}

Arguments Interpreter::arguments(const Expression& call, Value first) {
  Arguments all;
  all.given.push_back(std::move(first));
  add_arguments(call, all);
  return all;
}

Value Interpreter::evaluate_call(const Expression& expression) {
  const Expression& callee = *expression.parts[0];
  if (callee.kind == Expression::Kind::attribute) {
    Value object = evaluate(*callee.parts[0]);
    if (const Builtin method = find_method(object, callee.word)) {
      return method(arguments(expression, std::move(object)));
    }
    const Value function = attribute_of(object, callee.word);
    Arguments all;
    add_arguments(expression, all);
    return call(function, all);
  }
  const Value function = evaluate(callee);
  Arguments all;
  add_arguments(expression, all);
  return call(function, all);
}

Value Interpreter::evaluate_filter(const Expression& expression) {
  Value operand =
      expression.parts[0] == nullptr ? std::move(filtered_) : evaluate(*expression.parts[0]);
  return need_filter(expression.word)(arguments(expression, std::move(operand)));
}

Value Interpreter::evaluate_test(const Expression& expression) {
  Value operand = evaluate(*expression.parts[0]);
  return need_test(expression.word)(arguments(expression, std::move(operand)));
}

Value Interpreter::evaluate_slice(const Expression& expression) {
  Value bounds[3];
  const Value* given[3] = {};
  const Value object = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < 3; ++i) {
    if (expression.parts[i + 1] == nullptr) continue;
    bounds[i] = evaluate(*expression.parts[i + 1]);
    given[i] = bounds[i].is_none() ? nullptr : &bounds[i];
  }
  return slice_of(object, given[0], given[1], given[2]);
}

Value Interpreter::evaluate_comparison(const Expression& expression) {
  Value left = evaluate(*expression.parts[0]);
  for (size_t i = 0; i < expression.words.size(); ++i) {
    Value right = evaluate(*expression.parts[i + 1]);
    if (!compare(expression.words[i], left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

// As Python has `and` and `or`: the operand that decides.
Value Interpreter::evaluate_logic(const Expression& expression) {
  const bool stops_at = expression.kind == Expression::Kind::either;
  Value value;
  for (const ExpressionPtr& part : expression.parts) {
    value = evaluate(*part);
    if (truth(value) == stops_at) break;
  }
  return value;
}

Value Interpreter::evaluate_item(const Expression& expression) {
  const Value object = evaluate(*expression.parts[0]);
  const Value key = evaluate(*expression.parts[1]);
  Value item = item_of(object, key);
  if (!item.is_undefined() || key.as_text() == nullptr) return item;
  const std::string& name = key.as_text()->bytes();
  return find_method(object, name) != nullptr ? attribute(object, name) : item;
}

Value Interpreter::evaluate_condition(const Expression& expression) {
  const bool holds = truth(evaluate(*expression.parts[0]));
  const ExpressionPtr& chosen = expression.parts[holds ? 1 : 2];
  return chosen ? evaluate(*chosen) : Value::undefined("what an `if` without an `else` gives");
}

// Lists, tuples, dicts, chains and joins.
Value Interpreter::evaluate_parts(const Expression& expression) {
  if (expression.kind == Expression::Kind::chain) {
    Value left = evaluate(*expression.parts[0]);
    for (size_t i = 0; i < expression.words.size(); ++i) {
      left = operate(expression.words[i], left, evaluate(*expression.parts[i + 1]));
    }
    return left;
  }
  if (expression.kind == Expression::Kind::join) {
    Text text;
    for (const ExpressionPtr& part : expression.parts) text.append(text_of(evaluate(*part)));
    return Value::text(std::move(text));
  }
  Values items;
  items.reserve(expression.parts.size());
  for (const ExpressionPtr& part : expression.parts) items.push_back(evaluate(*part));
  if (expression.kind != Expression::Kind::dict) {
    return Value::list(std::move(items), expression.kind == Expression::Kind::tuple);
  }
  Entries entries;
  for (size_t i = 0; i < items.size(); i += 2) set_entry(entries, items[i], items[i + 1]);
  return Value::dict(std::move(entries));
}

Value Interpreter::evaluate(const Expression& expression) {
  const Level level(meter_);
  meter_.spend(1);
  line_ = expression.line;
  switch (expression.kind) {
    case Expression::Kind::constant:
      return expression.constant;
    case Expression::Kind::name: {
      const Value* value = find(expression.word);
      return value ? *value : Value::undefined(expression.word);
    }
    case Expression::Kind::list:
    case Expression::Kind::tuple:
    case Expression::Kind::dict:
    case Expression::Kind::chain:
    case Expression::Kind::join:
      return evaluate_parts(expression);
    case Expression::Kind::comparison:
      return evaluate_comparison(expression);
    case Expression::Kind::both:
    case Expression::Kind::either:
      return evaluate_logic(expression);
    case Expression::Kind::negation:
      return Value::boolean(!truth(evaluate(*expression.parts[0])));
    case Expression::Kind::minus: {
      const Value value = evaluate(*expression.parts[0]);
      if (value.as_number() != nullptr) return Value::number(-number_of(value));
      return operate("-", Value::integer(0), value);
    }
    case Expression::Kind::plus: {
      const Value value = evaluate(*expression.parts[0]);
      require(is_numeric(value), "+ has no meaning before a {}", value.type());
      return value.as_number() ? value : Value::integer(integer_of(value, ""));
    }
    case Expression::Kind::condition:
      return evaluate_condition(expression);
    case Expression::Kind::attribute:
      return attribute(evaluate(*expression.parts[0]), expression.word);
    case Expression::Kind::item:
      return evaluate_item(expression);
    case Expression::Kind::slice:
      return evaluate_slice(expression);
    case Expression::Kind::call:
      return evaluate_call(expression);
    case Expression::Kind::filter:
      return evaluate_filter(expression);
    case Expression::Kind::test:
      return evaluate_test(expression);
  }
  return {};
}

}  // namespace attnres::jinja
