// Where filters are found; those of any value.
#include <algorithm>
#include <string>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

Value default_value(const Arguments& arguments) {
  const Value& value = operand(arguments);
  const bool also_false = truth(flag(arguments, 2, "boolean", false));
  const bool missing = value.is_undefined() || (also_false && !truth(value));
  return missing ? arguments.get(1, "default_value", Value::text("")) : value;
}

Value string(const Arguments& arguments) {
  return Value::text(text_of(operand(arguments)));
}

// A dict has no attributes but its methods: its items are reached otherwise.
Value attr(const Arguments& arguments) {
  const Value& object = operand(arguments);
  const Text name = text_of(arguments.need(1, "name"));
  if (find_method(object, name.bytes()) != nullptr) return bound_method(object, name.bytes());
  if (object.as_dict() != nullptr) return Value::undefined("an attribute of a dict");
  return attribute_of(object, name.bytes());
}

// As transformers has it: json.dumps, and characters beyond ASCII as they are.
Value tojson(const Arguments& arguments) {
  JsonStyle style{.ascii = truth(flag(arguments, 1, "ensure_ascii", false))};
  const Value indent = arguments.get(2, "indent", Value::none());
  if (indent.as_text() != nullptr) {
    style.indent = indent.as_text()->bytes();
  } else if (!indent.is_none()) {
    const int64_t blanks = integer_of(indent, "indent");
    require(blanks <= 100, "tojson: expected an indent of at most 100, got {}", blanks);
    style.indent = std::string(static_cast<size_t>(std::max<int64_t>(blanks, 0)), ' ');
  }
  if (style.indent) style.between = ",";
  const Value separators = arguments.get(3, "separators", Value::none());
  if (!separators.is_none()) {
    const Values both = items_of(separators);
    require(both.size() == 2, "tojson: expected two separators");
    style.between = text_of(both[0]).bytes();
    style.after_key = text_of(both[1]).bytes();
  }
  style.sorted = truth(flag(arguments, 4, "sort_keys", false));
  return Value::text(json_of(operand(arguments), style));
}

// With the keys of dicts sorted.
Value pprint(const Arguments& arguments) {
  constexpr int64_t kLine = 80;
  const Value shown = Value::text(repr_of(operand(arguments), /*sorted=*/true));
  require(length_of(shown) <= kLine, "pprint: what takes more than a line is not supported");
  return shown;
}

const Builtins& other_filters() {
  static const Builtins filters = {
      {"attr", attr},     {"d", default_value}, {"default", default_value},
      {"pprint", pprint}, {"string", string},   {"tojson", tojson}};
  return filters;
}

}  // namespace

Value flag(const Arguments& arguments, size_t index, std::string_view name, bool otherwise) {
  return Value::boolean(truth(arguments.get(index, name, Value::boolean(otherwise))));
}

Value at_path(Value value, const Value& path, const Value& otherwise) {
  const auto step = [&](const Value& key) {
    Value item = item_of(value, key);
    value = item.is_undefined() && !otherwise.is_none() && !otherwise.is_undefined()
                ? otherwise
                : std::move(item);
  };
  if (path.as_text() == nullptr) {
    step(path);
    return value;
  }
  const std::string& names = path.as_text()->bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const bool index =
        !name.empty() && name.size() < 9 &&
        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    step(index ? Value::integer(std::stol(name)) : Value::text(name));
    begin = end + 1;
  }
  return value;
}

Builtin find_filter(std::string_view name) {
  for (const Builtins* filters :
       {&sequence_filters(), &text_filters(), &number_filters(), &other_filters()}) {
    const auto found = filters->find(name);
    if (found != filters->end()) return found->second;
  }
  return nullptr;
}

Builtin need_filter(std::string_view name) {
  const Builtin filter = find_filter(name);
  require(filter != nullptr, "there is no filter {}", name);
  return filter;
}

}  // namespace attnres::jinja
