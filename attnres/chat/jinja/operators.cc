#include <string.h>

#include <algorithm>
#include <cmath>

#include "attnres/chat/jinja/builtins.h"

namespace attnres::jinja {
namespace {

[[noreturn]] void refuse(std::string_view symbol, const Value& a, const Value& b) {
  if (a.is_undefined()) fail("{} is undefined", a.undefined_name());
  if (b.is_undefined()) fail("{} is undefined", b.undefined_name());
  fail("{} has no meaning between a {} and a {}", symbol, a.type(), b.type());
}

double operate_numbers(std::string_view symbol, double a, double b) {
  if (symbol == "+") return a + b;
  if (symbol == "-") return a - b;
  if (symbol == "*") return a * b;
  if (symbol == "**") {
    require(a != 0 || b >= 0, "0 has no negative power");
    require(a >= 0 || b == std::floor(b), "a negative number has no broken power");
    return std::pow(a, b);
  }
  require(b != 0, "division by zero");
  if (symbol == "/") return a / b;
  if (symbol == "//") return std::floor(a / b);
  const double rest = std::fmod(a, b);
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Value operate_integers(std::string_view symbol, int64_t a, int64_t b) {
  int64_t value = 0;
  bool overflow = false;
  if (symbol == "+") {
    overflow = __builtin_add_overflow(a, b, &value);
  } else if (symbol == "-") {
    overflow = __builtin_sub_overflow(a, b, &value);
  } else if (symbol == "*") {
    overflow = __builtin_mul_overflow(a, b, &value);
  } else if (symbol == "**" && b >= 0) {
    value = 1;
    require(b < 64 || (a >= -1 && a <= 1), "{} ** {} is too large a number", a, b);
    for (int64_t i = 0; i < std::min<int64_t>(b, 64 + b % 2) && !overflow; ++i) {
      overflow = __builtin_mul_overflow(value, a, &value);
    }
  } else if (symbol == "/" || symbol == "**") {
    return Value::number(operate_numbers(symbol, static_cast<double>(a), static_cast<double>(b)));
  } else {
    require(b != 0, "division by zero");
    overflow = b == -1 && __builtin_sub_overflow(int64_t{0}, a, &value);
    if (b != -1) value = symbol == "//" ? a / b : a % b;
    const bool exact = b == -1 || a % b == 0;
    if (b == -1 && symbol == "%") return Value::integer(0);
    if (!exact && (a < 0) != (b < 0)) value = symbol == "//" ? value - 1 : value + b;
  }
  require(!overflow, "{} {} {} is too large a number", a, symbol, b);
  return Value::integer(value);
}

// A list or a tuple, not what only loops go through.
bool is_sequence(const Value& value) {
  return value.as_list() != nullptr && value.as_list()->view == nullptr;
}
bool is_indexed_list(const Value& value) {
  return is_sequence(value) || (value.as_list() != nullptr && value.as_list()->range());
}

bool is_whole(const Value& value) {
  return value.as_integer() != nullptr || value.as_boolean() != nullptr;
}

Value repeat(const Value& value, int64_t times) {
  times = std::max<int64_t>(times, 0);
  if (const Text* text = value.as_text()) {
    Text all;
    for (int64_t i = 0; i < times; ++i) all.append(*text);
    return Value::text(std::move(all));
  }
  const ListNode& list = *value.as_list();
  const double count = static_cast<double>(times) * static_cast<double>(list.items.size());
  Values items;
  items.reserve(static_cast<size_t>(std::min(count, 1e12)));
  for (int64_t i = 0; i < times; ++i) {
    spend(1 + static_cast<int64_t>(list.items.size()));
    items.insert(items.end(), list.items.begin(), list.items.end());
  }
  return Value::list(std::move(items), list.tuple);
}

bool contains(const Value& all, const Value& part) {
  if (const Text* text = all.as_text()) {
    require(part.as_text() != nullptr, "in: expected a str within a str, got a {}", part.type());
    return find_bytes(text->bytes(), part.as_text()->bytes()) != std::string::npos;
  }
  if (const ListNode* list = all.as_list()) {
    if (list->generator()) return contains(Value::list(items_of(all)), part);
    return std::any_of(list->items.begin(), list->items.end(),
                       [&](const Value& item) { return equal(item, part); });
  }
  if (const DictNode* dict = all.as_dict()) {
    require_hashable(part);
    return dict->find(part) != nullptr;
  }
  require(all.is_undefined(), "in: a {} contains nothing", all.type());
  return false;
}

Value loop_attribute(const LoopNode& loop, const std::string& name) {
  const auto size = static_cast<int64_t>(loop.items.size());
  const auto index = static_cast<int64_t>(loop.index);
  if (name == "index") return Value::integer(index + 1);
  if (name == "index0") return Value::integer(index);
  if (name == "revindex") return Value::integer(size - index);
  if (name == "revindex0") return Value::integer(size - index - 1);
  if (name == "first") return Value::boolean(index == 0);
  if (name == "last") return Value::boolean(index + 1 == size);
  if (name == "length") return Value::integer(size);
  if (name == "depth") return Value::integer(loop.level);
  if (name == "depth0") return Value::integer(loop.level - 1);
  if (name == "previtem" && index > 0) return loop.items[loop.index - 1];
  if (name == "nextitem" && index + 1 < size) return loop.items[loop.index + 1];
  return Value::undefined(name);
}

// Python's bounds of a slice.
std::pair<int64_t, int64_t> bounds_of(int64_t size, const Value* begin, const Value* end,
                                      int64_t step) {
  const auto bound = [&](const Value* given, int64_t otherwise) {
    if (given == nullptr) return otherwise;
    int64_t at = integer_of(*given, "a slice");
    if (at < 0) at = at < -size ? -1 : at + size;
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  return step > 0 ? std::pair(bound(begin, 0), bound(end, size))
                  : std::pair(bound(begin, size - 1), bound(end, -1));
}

}  // namespace

size_t find_bytes(std::string_view text, std::string_view part, size_t from) {
  if (from > text.size()) return std::string::npos;
  const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
  const size_t at = found == nullptr
                        ? std::string::npos
                        : static_cast<size_t>(static_cast<const char*>(found) - text.data());
  spend(1 + static_cast<int64_t>((std::min(at, text.size()) - from + part.size()) / 32));
  return at;
}

Value operate(std::string_view symbol, const Value& a, const Value& b) {
  if (is_numeric(a) && is_numeric(b)) {
    if (a.as_number() != nullptr || b.as_number() != nullptr) {
      return Value::number(operate_numbers(symbol, number_of(a), number_of(b)));
    }
    return operate_integers(symbol, integer_of(a, ""), integer_of(b, ""));
  }
  if (symbol == "+" && a.as_text() && b.as_text()) {
    const bool markup = a.as_text()->markup() || b.as_text()->markup();
    Text text = markup ? escaped_markup(*a.as_text()) : *a.as_text();
    text.append(markup ? escaped_markup(*b.as_text()) : *b.as_text());
    text.set_markup(markup);
    return Value::text(std::move(text));
  }
  if (symbol == "+" && is_sequence(a) && is_sequence(b) && a.type() == b.type()) {
    Values items = items_of(a);
    items.insert(items.end(), b.as_list()->items.begin(), b.as_list()->items.end());
    return Value::list(std::move(items), a.as_list()->tuple);
  }
  if (symbol == "*") {
    if ((a.as_text() || is_sequence(a)) && is_whole(b)) return repeat(a, integer_of(b, ""));
    if ((b.as_text() || is_sequence(b)) && is_whole(a)) return repeat(b, integer_of(a, ""));
  }
  if (symbol == "%" && a.as_text()) return Value::text(percent_format(*a.as_text(), b));
  refuse(symbol, a, b);
}

bool compare(std::string_view word, const Value& a, const Value& b) {
  if (word == "==") return equal(a, b);
  if (word == "!=") return !equal(a, b);
  if (word == "in") return contains(b, a);
  if (word == "not in") return !contains(b, a);
  if (word == "<") return less(a, b);
  if (word == ">") return less(b, a);
  return word == "<=" ? less(a, b) || equal(a, b) : less(b, a) || equal(a, b);
}

Value attribute_of(const Value& object, const std::string& name) {
  if (object.is_undefined()) fail("{} is undefined", object.undefined_name());
  const Value* found = nullptr;
  if (const DictNode* dict = object.as_dict()) found = dict->find(name);
  if (NamespaceNode* space = object.as_space()) found = space->find(name);
  if (found != nullptr) return *found;
  if (const LoopNode* loop = object.as_loop()) return loop_attribute(*loop, name);
  if (object.as_function() && name == "name") return Value::text(object.as_function()->name);
  if (const ListNode* list = object.as_list(); list != nullptr && list->group) {
    if (name == "grouper") return list->items[0];
    if (name == "list") return list->items[1];
  }
  return Value::undefined(name);
}

Value item_of(const Value& object, const Value& key) {
  if (object.is_undefined()) fail("{} is undefined", object.undefined_name());
  if (const DictNode* dict = object.as_dict()) {
    const Value* found = dict->find(key);
    return found ? *found : Value::undefined("an item of a dict");
  }
  if (key.as_text() != nullptr) return attribute_of(object, key.as_text()->bytes());
  if (!is_whole(key) || (!is_indexed_list(object) && object.as_text() == nullptr)) {
    return Value::undefined(fmt::format("an item of a {}", object.type()));
  }
  const Offsets offsets =
      object.as_text() ? character_offsets(object.as_text()->bytes()) : Offsets();
  const auto size =
      static_cast<int64_t>(object.as_text() ? offsets.size() - 1 : object.as_list()->items.size());
  int64_t at = integer_of(key, "an index");
  if (at < 0 && at >= -size) at += size;
  if (at < 0 || at >= size) return Value::undefined(fmt::format("item {} of {}", at, size));
  const auto place = static_cast<size_t>(at);
  if (object.as_list() != nullptr) return object.as_list()->items[place];
  return Value::text(object.as_text()->slice(offsets[place], offsets[place + 1] - offsets[place]));
}

Value slice_of(const Value& object, const Value* begin, const Value* end, const Value* step) {
  if (object.is_undefined()) fail("{} is undefined", object.undefined_name());
  const Text* text = object.as_text();
  const ListNode* list = object.as_list();
  require(text != nullptr || is_indexed_list(object), "a {} cannot be sliced", object.type());
  const int64_t stride = step ? integer_of(*step, "a slice") : 1;
  require(stride != 0, "a slice's step must not be 0");
  const Offsets offsets = text ? character_offsets(text->bytes()) : Offsets();
  const auto size = static_cast<int64_t>(text ? offsets.size() - 1 : list->items.size());
  const auto [first, last] = bounds_of(size, begin, end, stride);
  if (text != nullptr && stride == 1) {
    const size_t from = offsets[static_cast<size_t>(first)];
    return Value::text(
        text->slice(from, offsets[static_cast<size_t>(std::max(first, last))] - from));
  }
  Text part;
  Values items;
  for (int64_t at = first; stride > 0 ? at < last : at > last;) {
    const auto place = static_cast<size_t>(at);
    if (text != nullptr) {
      part.append(text->slice(offsets[place], offsets[place + 1] - offsets[place]));
    } else {
      items.push_back(list->items[place]);
    }
    if (__builtin_add_overflow(at, stride, &at)) break;
  }
  if (text != nullptr) return Value::text(std::move(part));
  return list->range() ? Value::range(std::move(items))
                       : Value::list(std::move(items), list->tuple);
}

}  // namespace attnres::jinja
