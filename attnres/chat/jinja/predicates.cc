// What follows `is`.

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

template <class Holds>
Value holds(Holds holds, const Arguments& arguments) {
  return Value::boolean(holds(operand(arguments)));
}

Value compared(std::string_view word, const Arguments& arguments) {
  return Value::boolean(compare(word, operand(arguments), arguments.need(1, "other")));
}

double rest_of(const Arguments& arguments, const Value& divisor) {
  require(is_numeric(operand(arguments)), "expected a number, got a {}", operand(arguments).type());
  return number_of(operate("%", operand(arguments), divisor));
}

bool is_iterable(const Value& value) {
  return value.as_text() || value.as_list() || value.as_dict() || value.is_undefined();
}

bool is_indexed(const Value& value) {
  const ListNode* list = value.as_list();
  return is_iterable(value) && (list == nullptr || list->view == nullptr || list->range());
}

bool is_same(const Value& a, const Value& b) {
  return a.type() == b.type() && a.identity() == b.identity() && equal(a, b);
}

bool is_markup(const Value& value) {
  return value.as_text() != nullptr && value.as_text()->markup();
}

bool is_integer(const Value& value) {
  return value.as_integer() != nullptr;
}

const Builtins& tests() {
  using A = const Arguments&;
  static const Builtins all = {
      {"defined", [](A a) { return Value::boolean(!operand(a).is_undefined()); }},
      {"undefined", [](A a) { return Value::boolean(operand(a).is_undefined()); }},
      {"none", [](A a) { return Value::boolean(operand(a).is_none()); }},
      {"boolean", [](A a) { return Value::boolean(operand(a).as_boolean() != nullptr); }},
      {"true", [](A a) { return Value::boolean(operand(a).as_boolean() && truth(operand(a))); }},
      {"false", [](A a) { return Value::boolean(operand(a).as_boolean() && !truth(operand(a))); }},
      {"integer", [](A a) { return holds(is_integer, a); }},
      {"float", [](A a) { return Value::boolean(operand(a).as_number() != nullptr); }},
      {"number", [](A a) { return holds(is_numeric, a); }},
      {"string", [](A a) { return Value::boolean(operand(a).as_text() != nullptr); }},
      {"mapping", [](A a) { return Value::boolean(operand(a).as_dict() != nullptr); }},
      {"iterable", [](A a) { return holds(is_iterable, a); }},
      {"sequence", [](A a) { return holds(is_indexed, a); }},
      {"callable",
       [](A a) {
         return Value::boolean(operand(a).as_function() != nullptr || operand(a).is_undefined());
       }},
      {"escaped", [](A a) { return Value::boolean(is_markup(operand(a))); }},
      {"sameas", [](A a) { return Value::boolean(is_same(operand(a), a.need(1, "other"))); }},
      {"odd", [](A a) { return Value::boolean(rest_of(a, Value::integer(2)) == 1); }},
      {"even", [](A a) { return Value::boolean(rest_of(a, Value::integer(2)) == 0); }},
      {"divisibleby", [](A a) { return Value::boolean(rest_of(a, a.need(1, "num")) == 0); }},
      {"upper",
       [](A a) {
         return find_text_method("isupper")({.given = {Value::text(text_of(operand(a)))}});
       }},
      {"lower",
       [](A a) {
         return find_text_method("islower")({.given = {Value::text(text_of(operand(a)))}});
       }},
      {"filter",
       [](A a) { return Value::boolean(find_filter(text_of(operand(a)).bytes()) != nullptr); }},
      {"test",
       [](A a) { return Value::boolean(find_test(text_of(operand(a)).bytes()) != nullptr); }},
      {"in", [](A a) { return compared("in", a); }},
      {"eq", [](A a) { return compared("==", a); }},
      {"equalto", [](A a) { return compared("==", a); }},
      {"==", [](A a) { return compared("==", a); }},
      {"ne", [](A a) { return compared("!=", a); }},
      {"!=", [](A a) { return compared("!=", a); }},
      {"lt", [](A a) { return compared("<", a); }},
      {"lessthan", [](A a) { return compared("<", a); }},
      {"<", [](A a) { return compared("<", a); }},
      {"le", [](A a) { return compared("<=", a); }},
      {"<=", [](A a) { return compared("<=", a); }},
      {"gt", [](A a) { return compared(">", a); }},
      {"greaterthan", [](A a) { return compared(">", a); }},
      {">", [](A a) { return compared(">", a); }},
      {"ge", [](A a) { return compared(">=", a); }},
      {">=", [](A a) { return compared(">=", a); }}};
  return all;
}

}  // namespace

Builtin find_test(std::string_view name) {
  const auto found = tests().find(name);
  return found == tests().end() ? nullptr : found->second;
}

Builtin need_test(std::string_view name) {
  const Builtin test = find_test(name);
  require(test != nullptr, "there is no test {}", name);
  return test;
}

}  // namespace attnres::jinja
