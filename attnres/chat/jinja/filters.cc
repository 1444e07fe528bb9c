#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

Value flag(const Arguments& arguments, size_t index, std::string_view name, bool otherwise) {
  return Value::boolean(truth(arguments.get(index, name, Value::boolean(otherwise))));
}

// A method of texts on whatever it is, as text.
template <size_t n>
struct Name {
  constexpr Name(const char (&text)[n]) { std::copy(text, text + n, name); }
  char name[n];
};
template <Name method>
Value as_text(const Arguments& arguments) {
  Arguments all = arguments;
  for (Value& value : all.given) {
    if (value.as_text() == nullptr && !is_numeric(value) && !value.is_none()) {
      value = Value::text(text_of(value));
    }
  }
  all.given.at(0) = Value::text(text_of(operand(arguments)));
  return find_text_method(method.name)(all);
}

Value safe(const Arguments& arguments) {
  return Value::text(text_of(operand(arguments)));
}

Value escape(const Arguments& arguments) {
  Text text = text_of(operand(arguments));
  const std::pair<const char*, const char*> kEscapes[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  for (const auto& [plain, escaped] : kEscapes) text = replaced(text, plain, Text(escaped), -1);
  return Value::text(std::move(text));
}

Value absolute(const Arguments& arguments) {
  const Value& value = operand(arguments);
  if (value.as_number() != nullptr) return Value::number(std::abs(number_of(value)));
  const int64_t integer = integer_of(value, "abs");
  return integer < 0 ? operate("-", Value::integer(0), value) : Value::integer(integer);
}

Value default_value(const Arguments& arguments) {
  const Value& value = operand(arguments);
  const bool also_false = truth(flag(arguments, 2, "boolean", false));
  const bool missing = value.is_undefined() || (also_false && !truth(value));
  return missing ? arguments.get(1, "default_value", Value::text("")) : value;
}

Value first(const Arguments& arguments) {
  const Values items = items_of(operand(arguments));
  return items.empty() ? Value::undefined("the first of nothing") : items.front();
}
Value last(const Arguments& arguments) {
  const Values items = items_of(operand(arguments));
  return items.empty() ? Value::undefined("the last of nothing") : items.back();
}
Value length(const Arguments& arguments) {
  return Value::integer(length_of(operand(arguments)));
}
Value list(const Arguments& arguments) {
  return Value::list(items_of(operand(arguments)));
}
Value string(const Arguments& arguments) {
  return Value::text(text_of(operand(arguments)));
}

Value items_of_dict(const Arguments& arguments) {
  if (operand(arguments).is_undefined()) return Value::list({});
  require(operand(arguments).as_dict() != nullptr, "items: expected a dict, got a {}",
          operand(arguments).type());
  return find_method(operand(arguments), "items")(arguments);
}

// What Python's int() and float() take: a sign, and single underscores between digits, which are
// left out, as blanks around it are. Empty of anything else with those.
std::string plain_number(const Text& text) {
  std::string number = stripped(text, Value::none(), true, true).bytes();
  const size_t sign = number.starts_with('+') || number.starts_with('-') ? 1 : 0;
  if (number.size() > sign && (number[sign] == '+' || number[sign] == '-')) return "";
  if (number.starts_with('+')) number.erase(0, 1);
  const auto digit_at = [&](size_t at) {
    return at < number.size() && std::isxdigit(static_cast<unsigned char>(number[at])) != 0;
  };
  for (size_t at = number.find('_'); at != number.npos; at = number.find('_', at + 1)) {
    const bool prefix = at > 0 && std::string_view("xXoObB").find(number[at - 1]) != number.npos;
    if ((!prefix && (at == 0 || !digit_at(at - 1))) || !digit_at(at + 1)) return "";
  }
  std::erase(number, '_');
  return number;
}

// Nothing where it isn't a number as a whole.
std::optional<double> read_real(const std::string& text) {
  double number = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  const bool whole = read.ec == std::errc() && read.ptr == end && !text.ends_with(')');
  return whole ? std::optional(number) : std::nullopt;
}

// Base 0 is what the prefix says.
std::optional<int64_t> read_whole(std::string text, int64_t base) {
  const size_t sign = text.starts_with('-') ? 1 : 0;
  constexpr std::pair<std::string_view, int64_t> kPrefixes[] = {{"0x", 16}, {"0X", 16}, {"0o", 8},
                                                                {"0O", 8},  {"0b", 2},  {"0B", 2}};
  for (const auto& [prefix, of] : kPrefixes) {
    if ((base != 0 && base != of) || text.compare(sign, 2, prefix) != 0) continue;
    base = of;
    text.erase(sign, 2);
    break;
  }
  if (text.find('-', sign) != text.npos) return std::nullopt;
  if (base == 0) {
    base = 10;
    const size_t digit = text.find_first_not_of('0', sign);
    if (text.compare(sign, 1, "0") == 0 && digit != text.npos) return std::nullopt;
  }
  if (base < 2 || base > 36) return std::nullopt;
  int64_t whole = 0;
  const char* end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, whole, static_cast<int>(base));
  return read.ec == std::errc() && read.ptr == end ? std::optional(whole) : std::nullopt;
}

Value to_int(const Arguments& arguments) {
  const Value& value = operand(arguments);
  Value otherwise = arguments.get(1, "default", Value::integer(0));
  std::optional<double> real;
  if (value.as_number() != nullptr) {
    real = number_of(value);
  } else if (const Text* text = value.as_text()) {
    const std::string number = plain_number(*text);
    const int64_t base = integer_of(arguments.get(2, "base", Value::integer(10)), "base");
    if (const auto whole = read_whole(number, base)) return Value::integer(*whole);
    real = read_real(number);
  } else if (is_numeric(value)) {
    return Value::integer(integer_of(value, "int"));
  }
  return real && std::abs(*real) < 9e18 ? Value::integer(static_cast<int64_t>(*real)) : otherwise;
}

Value to_float(const Arguments& arguments) {
  const Value& value = operand(arguments);
  if (is_numeric(value)) return Value::number(number_of(value));
  Value otherwise = arguments.get(1, "default", Value::number(0));
  if (value.as_text() == nullptr) return otherwise;
  const auto real = read_real(plain_number(*value.as_text()));
  return real ? Value::number(*real) : otherwise;
}

// Halves to the even digit, as Python's round(): of the exact value, which 1.115 is a little below.
double rounded_real(double value, int64_t places) {
  if (places > 323 || !std::isfinite(value)) return value;
  if (places < -308) return 0 * value;
  if (places < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-places));
    return std::nearbyint(value / unit) * unit;
  }
  double rounded = 0;
  char digits[1024];  // 309 before the point, 323 behind it at most
  const auto written = std::to_chars(digits, digits + sizeof digits, value,
                                     std::chars_format::fixed, static_cast<int>(places));
  std::from_chars(digits, written.ptr, rounded);
  return rounded;
}

// An int stays one.
int64_t rounded_whole(int64_t value, int64_t places) {
  if (places >= 0) return value;
  if (places < -18) return 0;
  int64_t unit = 1;
  for (int64_t i = 0; i < -places; ++i) unit *= 10;
  const int64_t rest = value % unit;
  const int64_t below = value - rest;
  const int64_t twice = std::abs(rest) - (unit - std::abs(rest));
  const bool away = twice > 0 || (twice == 0 && below / unit % 2 != 0);
  const Value moved = Value::integer(away ? (value < 0 ? -unit : unit) : 0);
  return *operate("+", Value::integer(below), moved).as_integer();
}

Value round(const Arguments& arguments) {
  const Value& value = operand(arguments);
  const int64_t places = integer_of(arguments.get(1, "precision", Value::integer(0)), "precision");
  const std::string method = text_of(arguments.get(2, "method", Value::text("common"))).bytes();
  if (method == "common") {
    if (value.as_number() != nullptr) return Value::number(rounded_real(number_of(value), places));
    return Value::integer(rounded_whole(integer_of(value, "round"), places));
  }
  require(method == "ceil" || method == "floor", "round: expected common, ceil or floor");
  const double scale = std::pow(10.0, static_cast<double>(std::clamp<int64_t>(places, -300, 300)));
  const double scaled = number_of(value) * scale;
  return Value::number((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

Value reverse(const Arguments& arguments) {
  Values all = items_of(operand(arguments));
  std::reverse(all.begin(), all.end());
  if (operand(arguments).as_text() == nullptr) return Value::list(std::move(all));
  Text text;
  for (const Value& one : all) text.append(*one.as_text());
  return Value::text(std::move(text));
}

// a.b.0 of a value.
Value path_of(Value value, const Value& path) {
  if (path.as_text() == nullptr) return item_of(value, path);
  const std::string& names = path.as_text()->bytes();
  for (size_t begin = 0; begin <= names.size();) {
    const size_t end = std::min(names.find('.', begin), names.size());
    const std::string name = names.substr(begin, end - begin);
    const bool index =
        !name.empty() && name.size() < 9 &&
        std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    value = item_of(value, index ? Value::integer(std::stol(name)) : Value::text(name));
    begin = end + 1;
  }
  return value;
}

Value key_of(const Value& value, const Value& path, bool by_case) {
  Value key = path.is_none() ? value : path_of(value, path);
  return by_case || key.as_text() == nullptr ? key : Value::text(lower_case(*key.as_text()));
}

Values sorted(Values items, const Value& path, bool by_case, bool reversed) {
  Entries keyed;
  for (Value& item : items) {
    Value key = key_of(item, path, by_case);
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
  return Value::list(std::move(out));
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
  for (const Value& item : items_of(operand(arguments))) {
    total = operate("+", total, path.is_none() ? item : path_of(item, path));
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
    out.append(text_of(path.is_none() ? item : path_of(item, path)));
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
  const Value otherwise = arguments.get(std::string::npos, "default", Value());
  for (const Value& item : items_or_nothing(arguments)) {
    if (path != nullptr) {
      Value found = path_of(item, *path);
      out.push_back(found.is_undefined() ? otherwise : std::move(found));
      continue;
    }
    const Builtin filter = need_filter(text_of(arguments.need(1, "filter")).bytes());
    out.push_back(applied(filter, item, arguments, 2));
  }
  return Value::list(std::move(out));
}

// Those of which a test holds; of an attribute where there is one; truth where there is no test.
template <bool of_attribute, bool wanted>
Value chosen(const Arguments& arguments) {
  Values out;
  const size_t test_at = of_attribute ? 2 : 1;
  for (const Value& item : items_or_nothing(arguments)) {
    const Value value = of_attribute ? path_of(item, arguments.need(1, "attribute")) : item;
    bool holds = truth(value);
    if (arguments.given.size() > test_at) {
      const Builtin test = need_test(text_of(arguments.given[test_at]).bytes());
      holds = truth(applied(test, value, arguments, test_at + 1));
    }
    if (holds == wanted) out.push_back(item);
  }
  return Value::list(std::move(out));
}

// A dict has no attributes: its items are reached otherwise.
Value attr(const Arguments& arguments) {
  if (operand(arguments).as_dict() != nullptr) return Value::undefined("an attribute of a dict");
  return attribute_of(operand(arguments), text_of(arguments.need(1, "name")).bytes());
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
  return Value::list(std::move(rows));
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
  return Value::list(std::move(rows));
}

// As `format % values`.
Value format_filter(const Arguments& arguments) {
  const Text pattern = text_of(operand(arguments));
  if (arguments.named.empty()) {
    return Value::text(percent_format(pattern, Value::list(arguments.rest(1).given, true)));
  }
  require(arguments.given.size() == 1, "format: expected values with names or without, got both");
  Entries entries;
  for (const auto& [name, value] : arguments.named) entries.emplace_back(Value::text(name), value);
  return Value::text(percent_format(pattern, Value::dict(std::move(entries))));
}

Value indent(const Arguments& arguments) {
  const Value width = arguments.get(1, "width", Value::integer(4));
  const bool first_too = truth(flag(arguments, 2, "first", false));
  const bool blank_too = truth(flag(arguments, 3, "blank", false));
  Text by;
  if (width.as_text() != nullptr) {
    by = *width.as_text();
  } else {
    by = *operate("*", Value::text(" "), width).as_text();
  }
  Text text = text_of(operand(arguments));
  text.append("\n");
  const Values lines = split_lines(text);
  Text out;
  for (size_t i = 0; i < lines.size(); ++i) {
    const Text& line = *lines[i].as_text();
    if (i > 0) out.append("\n");
    if (i == 0 ? first_too : blank_too || line.size() > 0) out.append(by);
    out.append(line);
  }
  return Value::text(std::move(out));
}

Value truncate(const Arguments& arguments) {
  const Value value = Value::text(text_of(operand(arguments)));
  const int64_t length = integer_of(arguments.get(1, "length", Value::integer(255)), "length");
  const bool kills_words = truth(flag(arguments, 2, "killwords", false));
  const Text end = text_of(arguments.get(3, "end", Value::text("...")));
  const int64_t leeway = integer_of(arguments.get(4, "leeway", Value::integer(5)), "leeway");
  const int64_t kept = length - length_of(Value::text(end));
  require(kept >= 0 && leeway >= 0, "truncate: expected a length of at least that of the end");
  if (length_of(value) - leeway <= length) return value;
  const Value bound = Value::integer(kept);
  Text out = *slice_of(value, nullptr, &bound, nullptr).as_text();
  if (const size_t blank = out.bytes().rfind(' '); !kills_words && blank != std::string::npos) {
    out = out.slice(0, blank);
  }
  out.append(end);
  return Value::text(std::move(out));
}

// Letters that begin, and those behind blanks, hyphens and opening brackets.
Value title_filter(const Arguments& arguments) {
  const Text text = text_of(operand(arguments));
  Text out;
  bool begins = true;
  for (const Value& one : items_of(Value::text(text))) {
    const Text& c = *one.as_text();
    out.append(begins ? upper_case(c) : lower_case(c));
    begins = std::string_view(" \t\n\r\f\v-({[<").find(c.bytes()) != std::string_view::npos;
  }
  return Value::text(std::move(out));
}

// Runs of letters, numbers and underscores.
Value wordcount(const Arguments& arguments) {
  const Text text = text_of(operand(arguments));
  const std::string& bytes = text.bytes();
  spend(static_cast<int64_t>(bytes.size() / 8));
  int64_t words = 0;
  bool within = false;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(std::string_view(bytes).substr(at));
    int32_t offset = 0;
    UChar32 c = 0;
    U8_NEXT(bytes.data() + at, offset, static_cast<int32_t>(step.bytes), c);
    const bool word =
        c == '_' ||
        (c >= 0 && (u_isalpha(c) || u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE));
    if (word && !within) ++words;
    within = word;
    at += step.bytes;
  }
  return Value::integer(words);
}

// As transformers has it: json.dumps, and characters beyond ASCII as they are.
Value tojson(const Arguments& arguments) {
  JsonStyle style{.ascii = truth(flag(arguments, 1, "ensure_ascii", false))};
  const Value indent = arguments.get(2, "indent", Value::none());
  if (!indent.is_none()) {
    style.indent = integer_of(indent, "indent");
    require(style.indent >= 0 && style.indent <= 100,
            "tojson: expected an indent of 0 to 100, got {}", style.indent);
    style.between = std::string(1, ',');
  }
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

}  // namespace

Builtin find_filter(std::string_view name) {
  static const Builtins filters = {{"abs", absolute},
                                   {"attr", attr},
                                   {"batch", batch},
                                   {"capitalize", as_text<"capitalize">},
                                   {"center", as_text<"center">},
                                   {"count", length},
                                   {"d", default_value},
                                   {"default", default_value},
                                   {"dictsort", dictsort},
                                   {"e", escape},
                                   {"escape", escape},
                                   {"first", first},
                                   {"float", to_float},
                                   {"format", format_filter},
                                   {"indent", indent},
                                   {"int", to_int},
                                   {"items", items_of_dict},
                                   {"join", join_items},
                                   {"last", last},
                                   {"length", length},
                                   {"list", list},
                                   {"lower", as_text<"lower">},
                                   {"map", map},
                                   {"max", extreme<true>},
                                   {"min", extreme<false>},
                                   {"reject", chosen<false, false>},
                                   {"rejectattr", chosen<true, false>},
                                   {"replace", as_text<"replace">},
                                   {"reverse", reverse},
                                   {"round", round},
                                   {"safe", safe},
                                   {"select", chosen<false, true>},
                                   {"selectattr", chosen<true, true>},
                                   {"slice", slices},
                                   {"sort", sort},
                                   {"string", string},
                                   {"sum", sum},
                                   {"title", title_filter},
                                   {"tojson", tojson},
                                   {"trim", as_text<"strip">},
                                   {"truncate", truncate},
                                   {"unique", unique},
                                   {"upper", as_text<"upper">},
                                   {"wordcount", wordcount}};
  const auto found = filters.find(name);
  return found == filters.end() ? nullptr : found->second;
}

Builtin need_filter(std::string_view name) {
  const Builtin filter = find_filter(name);
  require(filter != nullptr, "there is no filter {}", name);
  return filter;
}

}  // namespace attnres::jinja
