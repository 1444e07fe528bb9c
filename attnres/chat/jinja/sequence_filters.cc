// Filters of what can be gone through.
#include <algorithm>
#include <string>
#include <utility>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

Value first(const Arguments& arguments) {
  const Value& value = operand(arguments);
  if (const ListNode* list = value.as_list(); list != nullptr && list->generator()) {
    return list->taken < list->items.size() ? list->items[list->taken++]
                                            : Value::undefined("the first of nothing");
  }
  const Values items = items_of(value);
  return items.empty() ? Value::undefined("the first of nothing") : items.front();
}

Value last(const Arguments& arguments) {
  const Value& value = operand(arguments);
  require(value.as_list() == nullptr || !value.as_list()->generator(),
          "last: a generator has no last; make a list of it");
  const Values items = items_of(value);
  return items.empty() ? Value::undefined("the last of nothing") : items.back();
}

Value length(const Arguments& arguments) {
  return Value::integer(length_of(operand(arguments)));
}

Value list(const Arguments& arguments) {
  return Value::list(items_of(operand(arguments)));
}

Value items_of_dict(const Arguments& arguments) {
  if (operand(arguments).is_undefined()) return Value::generator({});
  require(operand(arguments).as_dict() != nullptr, "items: expected a dict, got a {}",
          operand(arguments).type());
  return Value::generator(items_of(find_method(operand(arguments), "items")(arguments)));
}

Value reverse(const Arguments& arguments) {
  const Text* given = operand(arguments).as_text();
  Values all = items_of(operand(arguments));
  std::reverse(all.begin(), all.end());
  if (given == nullptr) return Value::generator(std::move(all));
  Text text;
  for (const Value& one : all) text.append(*one.as_text());
  text.set_markup(given->markup());
  return Value::text(std::move(text));
}

// What values are sorted and told apart by: the value, or the value's at a path.
Value key_of(const Value& value, const Value& path, bool by_case, const Value& otherwise = {}) {
  Value key = path.is_none() ? value : at_path(value, path, otherwise);
  return by_case || key.as_text() == nullptr ? key : Value::text(lower_case(*key.as_text()));
}

// Paths with commas between them, one after another.
Value keys_of(const Value& value, const Value& paths, bool by_case) {
  if (paths.as_text() == nullptr) return key_of(value, paths, by_case);
  Values keys;
  const std::string& names = paths.as_text()->bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find(',', begin), names.size());
    keys.push_back(key_of(value, Value::text(names.substr(begin, end - begin)), by_case));
    begin = end + 1;
  }
  return keys.size() == 1 ? keys[0] : Value::list(std::move(keys));
}

Values sorted(Values items, const Value& path, bool by_case, bool reversed) {
  Entries keyed;
  for (Value& item : items) {
    Value key = keys_of(item, path, by_case);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    return reversed ? less(b.first, a.first) : less(a.first, b.first);
  });
  Values out;
  for (auto& [key, item] : keyed) out.push_back(std::move(item));
  return out;
}

Value sort(const Arguments& arguments) {
  return Value::list(sorted(items_of(operand(arguments)),
                            arguments.get(3, "attribute", Value::none()),
                            truth(flag(arguments, 2, "case_sensitive", false)),
                            truth(flag(arguments, 1, "reverse", false))));
}

Value dictsort(const Arguments& arguments) {
  const std::string by = text_of(arguments.get(2, "by", Value::text("key"))).bytes();
  require(by == "key" || by == "value", "dictsort: expected by key or value, got {}", by);
  const Value pairs = items_of_dict(Arguments{.given = {operand(arguments)}});
  return Value::list(sorted(pairs.as_list()->items, Value::integer(by == "key" ? 0 : 1),
                            truth(flag(arguments, 1, "case_sensitive", false)),
                            truth(flag(arguments, 3, "reverse", false))));
}

Value unique(const Arguments& arguments) {
  const bool by_case = truth(flag(arguments, 1, "case_sensitive", false));
  const Value path = arguments.get(2, "attribute", Value::none());
  Values keys;
  Values out;
  for (const Value& item : items_of(operand(arguments))) {
    Value key = key_of(item, path, by_case);
    require_hashable(key);
    if (std::any_of(keys.begin(), keys.end(),
                    [&](const Value& seen) { return equal(seen, key); })) {
      continue;
    }
    keys.push_back(std::move(key));
    out.push_back(item);
  }
  return Value::generator(std::move(out));
}

// Pairs of a key, as it is in the first of its items, and the list of these, sorted by the key.
Value groupby(const Arguments& arguments) {
  const Value& path = arguments.need(1, "attribute");
  const Value otherwise = arguments.get(2, "default", Value::none());
  const bool by_case = truth(flag(arguments, 3, "case_sensitive", false));
  Entries keyed;
  for (Value& item : items_of(operand(arguments))) {
    Value key = key_of(item, path, by_case, otherwise);
    keyed.emplace_back(std::move(key), std::move(item));
  }
  std::stable_sort(keyed.begin(), keyed.end(),
                   [](const auto& a, const auto& b) { return less(a.first, b.first); });
  Values groups;
  for (auto begin = keyed.begin(); begin != keyed.end();) {
    Values items;
    auto end = begin;
    for (; end != keyed.end() && equal(end->first, begin->first); ++end) {
      items.push_back(end->second);
    }
    Value key = at_path(items[0], path, otherwise);
    groups.push_back(Value::group(std::move(key), std::move(items)));
    begin = end;
  }
  return Value::list(std::move(groups));
}

template <bool greatest>
Value extreme(const Arguments& arguments) {
  const Values all =
      sorted(items_of(operand(arguments)), arguments.get(2, "attribute", Value::none()),
             truth(flag(arguments, 1, "case_sensitive", false)), greatest);
  return all.empty() ? Value::undefined("the extreme of nothing") : all.front();
}

Value sum(const Arguments& arguments) {
  const Value path = arguments.get(1, "attribute", Value::none());
  Value total = arguments.get(2, "start", Value::integer(0));
  require(total.as_text() == nullptr, "sum: texts are joined by join");
  for (const Value& item : items_of(operand(arguments))) {
    total = operate("+", total, path.is_none() ? item : at_path(item, path));
  }
  return total;
}

Value join_items(const Arguments& arguments) {
  const Text between = text_of(arguments.get(1, "d", Value::text("")));
  const Value path = arguments.get(2, "attribute", Value::none());
  Text out;
  bool begun = false;
  for (const Value& item : items_of(operand(arguments))) {
    if (std::exchange(begun, true)) out.append(between);
    out.append(text_of(path.is_none() ? item : at_path(item, path)));
  }
  return Value::text(std::move(out));
}

// What `map`, `select` and their kin go through: nothing of none, too.
Values items_or_nothing(const Arguments& arguments) {
  return truth(operand(arguments)) ? items_of(operand(arguments)) : Values();
}

// What a filter or a test gives for an item, with the arguments from `first` on.
Value applied(Builtin builtin, const Value& item, const Arguments& arguments, size_t first) {
  const Level level(*Meter::current());
  Arguments all = arguments.rest(first);
  all.given.insert(all.given.begin(), item);
  return builtin(all);
}

Value map(const Arguments& arguments) {
  Values out;
  const Value* path = arguments.find(std::string::npos, "attribute");
  const Value otherwise = arguments.get(std::string::npos, "default", Value::none());
  for (const Value& item : items_or_nothing(arguments)) {
    if (path != nullptr) {
      out.push_back(at_path(item, *path, otherwise));
      continue;
    }
    const Builtin filter = need_filter(text_of(arguments.need(1, "filter")).bytes());
    out.push_back(applied(filter, item, arguments, 2));
  }
  return Value::generator(std::move(out));
}

// Those of which a test holds; of an attribute where there is one; truth where there is no test.
template <bool of_attribute, bool wanted>
Value chosen(const Arguments& arguments) {
  Values out;
  const size_t test_at = of_attribute ? 2 : 1;
  for (const Value& item : items_or_nothing(arguments)) {
    const Value value = of_attribute ? at_path(item, arguments.need(1, "attribute")) : item;
    bool holds = truth(value);
    if (arguments.given.size() > test_at) {
      const Builtin test = need_test(text_of(arguments.given[test_at]).bytes());
      holds = truth(applied(test, value, arguments, test_at + 1));
    }
    if (holds == wanted) out.push_back(item);
  }
  return Value::generator(std::move(out));
}

Value batch(const Arguments& arguments) {
  const int64_t size = integer_of(arguments.need(1, "linecount"), "batch");
  require(size > 0, "batch: expected a positive number, got {}", size);
  const Value fill = arguments.get(2, "fill_with", Value::none());
  Values rows;
  Values row;
  for (const Value& item : items_of(operand(arguments))) {
    row.push_back(item);
    if (static_cast<int64_t>(row.size()) == size) {
      rows.push_back(Value::list(std::exchange(row, {})));
    }
  }
  if (!row.empty()) {
    require(fill.is_none() || size <= 100'000, "batch: expected at most 100000, got {}", size);
    if (!fill.is_none()) row.resize(static_cast<size_t>(size), fill);
    rows.push_back(Value::list(std::move(row)));
  }
  return Value::generator(std::move(rows));
}

// So many lists, the first of which are longer by one where they cannot be equal.
Value slices(const Arguments& arguments) {
  const int64_t count = integer_of(arguments.need(1, "slices"), "slice");
  require(count > 0 && count <= 100'000, "slice: expected 1 to 100000, got {}", count);
  const Value fill = arguments.get(2, "fill_with", Value::none());
  const Values all = items_of(operand(arguments));
  const int64_t size = std::ssize(all) / count, longer = std::ssize(all) % count;
  Values rows;
  auto next = all.begin();
  for (int64_t i = 0; i < count; ++i) {
    const auto end = next + size + (i < longer ? 1 : 0);
    Values row(next, end);
    if (i >= longer && !fill.is_none()) row.push_back(fill);
    rows.push_back(Value::list(std::move(row)));
    next = end;
  }
  return Value::generator(std::move(rows));
}

}  // namespace

const Builtins& sequence_filters() {
  static const Builtins filters = {{"batch", batch},
                                   {"count", length},
                                   {"dictsort", dictsort},
                                   {"first", first},
                                   {"groupby", groupby},
                                   {"items", items_of_dict},
                                   {"join", join_items},
                                   {"last", last},
                                   {"length", length},
                                   {"list", list},
                                   {"map", map},
                                   {"max", extreme<true>},
                                   {"min", extreme<false>},
                                   {"reject", chosen<false, false>},
                                   {"rejectattr", chosen<true, false>},
                                   {"reverse", reverse},
                                   {"select", chosen<false, true>},
                                   {"selectattr", chosen<true, true>},
                                   {"slice", slices},
                                   {"sort", sort},
                                   {"sum", sum},
                                   {"unique", unique}};
  return filters;
}

}  // namespace attnres::jinja
