// Methods of dicts, lists and loops, and where those of texts are found.
#include <algorithm>
#include <memory>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

// About what a method takes while it is held.
constexpr int64_t kMethodBytes = 256;

const DictNode& dict_of(const Arguments& arguments) {
  return *arguments.given[0].as_dict();
}

Value get(const Arguments& arguments) {
  const Value& key = arguments.need(1, "key");
  require_hashable(key);
  const Value* found = dict_of(arguments).find(key);
  return found ? *found : arguments.get(2, "default", Value::none());
}
Value keys(const Arguments& arguments) {
  return Value::view("dict_keys", items_of(arguments.given[0]));
}
Value values(const Arguments& arguments) {
  Values all;
  for (const auto& entry : dict_of(arguments).entries) all.push_back(entry.second);
  return Value::view("dict_values", std::move(all));
}
Value items(const Arguments& arguments) {
  Values all;
  for (const auto& [key, value] : dict_of(arguments).entries) {
    all.push_back(Value::list({key, value}, /*tuple=*/true));
  }
  return Value::view("dict_items", std::move(all));
}
Value copy(const Arguments& arguments) {
  return arguments.given[0];
}

Value list_index(const Arguments& arguments) {
  const auto& all = arguments.given[0].as_list()->items;
  const auto found = std::find_if(all.begin(), all.end(), [&](const Value& item) {
    return equal(item, arguments.need(1, "value"));
  });
  require(found != all.end(), "index: it isn't in the list");
  return Value::integer(found - all.begin());
}
Value list_count(const Arguments& arguments) {
  const auto& all = arguments.given[0].as_list()->items;
  return Value::integer(std::count_if(all.begin(), all.end(), [&](const Value& item) {
    return equal(item, arguments.need(1, "value"));
  }));
}
Value changes(const Arguments& arguments) {
  fail("a template must not change a {}", arguments.given[0].type());
}

Value cycle(const Arguments& arguments) {
  require(arguments.given.size() > 1, "loop.cycle: expected values");
  const size_t values = arguments.given.size() - 1;
  return arguments.given[1 + arguments.given[0].as_loop()->index % values];
}
Value changed(const Arguments& arguments) {
  LoopNode& loop = *arguments.given[0].as_loop();
  require(!loop.ended, "loop.changed: the loop has ended");
  Value now = Value::list(arguments.rest(1).given);
  const bool other = loop.changed.is_undefined() || !equal(loop.changed, now);
  loop.changed = std::move(now);
  return Value::boolean(other);
}

const Builtins& methods_of(const Value& object) {
  static const Builtins of_dicts = {{"get", get},           {"keys", keys},     {"values", values},
                                    {"items", items},       {"copy", copy},     {"pop", changes},
                                    {"popitem", changes},   {"clear", changes}, {"update", changes},
                                    {"setdefault", changes}};
  static const Builtins of_lists = {
      {"index", list_index}, {"count", list_count}, {"copy", copy},      {"append", changes},
      {"extend", changes},   {"insert", changes},   {"pop", changes},    {"remove", changes},
      {"clear", changes},    {"sort", changes},     {"reverse", changes}};
  static const Builtins of_tuples = {{"index", list_index}, {"count", list_count}};
  static const Builtins of_loops = {{"cycle", cycle}, {"changed", changed}};
  static const Builtins none;
  if (object.as_dict() != nullptr) return of_dicts;
  if (const ListNode* list = object.as_list()) {
    return list->view != nullptr ? none : list->tuple ? of_tuples : of_lists;
  }
  return object.as_loop() != nullptr ? of_loops : none;
}

}  // namespace

Value bound_method(const Value& object, const std::string& name) {
  const Builtin method = find_method(object, name);
  const auto bytes = std::make_shared<const HeldBytes>(kMethodBytes);
  return Value::method(name, object, [object, method, bytes](const Arguments& arguments) {
    Arguments all = arguments.rest(0);
    all.given.insert(all.given.begin(), object);
    return method(all);
  });
}

Builtin find_method(const Value& object, std::string_view name) {
  if (object.as_text() != nullptr) return find_text_method(name);
  const Builtins& methods = methods_of(object);
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

}  // namespace attnres::jinja
