// Methods of texts, dicts, lists and loops.
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <set>

#include "attnres/text/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

const Text& text_at(const Arguments& arguments, size_t index, std::string_view name) {
  const Value& value = arguments.need(index, name);
  require(value.as_text() != nullptr, "expected a str for {}, got a {}", name, value.type());
  return *value.as_text();
}

const Text& self(const Arguments& arguments) {
  return text_at(arguments, 0, "the text");
}

UChar32 character(std::string_view text) {
  int32_t offset = 0;
  UChar32 c = 0;
  U8_NEXT(text.data(), offset, static_cast<int32_t>(text.size()), c);
  return c;
}

bool is_blank(std::string_view text) {
  const UChar32 c = character(text);
  return u_isUWhiteSpace(c) || (c >= 0x1c && c <= 0x1f);
}

// Each character through `change`, which gives its text.
template <class Change>
Text mapped(const Text& text, Change change) {
  Text out;
  const Offsets offsets = character_offsets(text.bytes());
  spend(static_cast<int64_t>(offsets.size() / 2));
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    const std::string_view bytes =
        std::string_view(text.bytes()).substr(offsets[i], offsets[i + 1] - offsets[i]);
    out.append(change(bytes, i), text.written(offsets[i]));
  }
  return out;
}

std::string cased(std::string_view bytes, bool upper) {
  if (bytes.size() == 1) {
    const char c = bytes[0];
    if (upper) return {c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c};
    return {c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c};
  }
  if (utf8_step(bytes).kind != Utf8Step::Kind::character) return std::string(bytes);
  icu::UnicodeString whole(character(bytes));
  std::string out;
  (upper ? whole.toUpper(icu::Locale::getRoot()) : whole.toLower(icu::Locale::getRoot()))
      .toUTF8String(out);
  return out;
}

using Case = Text (*)(const Text&);
template <Case change>
Value in_case(const Arguments& arguments) {
  return Value::text(change(self(arguments)));
}
// That it is in this case, and would not be the same in the other one.
template <Case change, Case other>
Value is_in_case(const Arguments& arguments) {
  const Text& text = self(arguments);
  return Value::boolean(change(text).bytes() == text.bytes() &&
                        other(text).bytes() != text.bytes());
}
Value capitalize(const Arguments& arguments) {
  return Value::text(mapped(self(arguments), [](std::string_view bytes, size_t at) {
    return cased(bytes, /*upper=*/at == 0);
  }));
}
Value title(const Arguments& arguments) {
  bool within = false;
  return Value::text(mapped(self(arguments), [&](std::string_view bytes, size_t) {
    std::string out = cased(bytes, /*upper=*/!within);
    within = u_isalpha(character(bytes));
    return out;
  }));
}

Value swapcase(const Arguments& arguments) {
  return Value::text(mapped(self(arguments), [](std::string_view bytes, size_t) {
    return cased(bytes, /*upper=*/!u_isupper(character(bytes)));
  }));
}

template <bool left, bool right>
Value strip(const Arguments& arguments) {
  return Value::text(
      stripped(self(arguments), arguments.get(1, "chars", Value::none()), left, right));
}

// Where a method begins, of which there is one for either end.
constexpr bool kFromLeft = false, kFromRight = true;

// At blanks, any number of them one separator.
Values split_at_blanks(const Text& text, int64_t most, bool from_right) {
  const std::string_view bytes = text.bytes();
  const Offsets offsets = character_offsets(bytes);
  std::vector<std::pair<size_t, size_t>, Counted<std::pair<size_t, size_t>>> words;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (is_blank(bytes.substr(offsets[i], offsets[i + 1] - offsets[i]))) continue;
    if (!words.empty() && words.back().second == offsets[i]) {
      words.back().second = offsets[i + 1];
    } else {
      words.emplace_back(offsets[i], offsets[i + 1]);
    }
  }
  // What is beyond the number of splits stays one word, with its blanks.
  const auto size = static_cast<int64_t>(words.size());
  if (most >= 0 && size > most) {
    if (from_right) {
      words.erase(words.begin(), words.begin() + (size - most - 1));
      words[0].first = 0;
    } else {
      words.resize(static_cast<size_t>(most + 1));
      words.back().second = bytes.size();
    }
  }
  Values parts;
  for (const auto& [begin, end] : words)
    parts.push_back(Value::text(text.slice(begin, end - begin)));
  return parts;
}

Values split_at(const Text& text, const std::string& separator, int64_t most, bool from_right) {
  require(!separator.empty(), "split: the separator is empty");
  Offsets places;
  for (size_t at = find_bytes(text.bytes(), separator); at != std::string::npos;
       at = find_bytes(text.bytes(), separator, at + separator.size())) {
    places.push_back(at);
    if (!from_right && most >= 0 && std::ssize(places) >= most) break;
  }
  if (const int64_t beyond = std::ssize(places) - most; most >= 0 && beyond > 0) {
    places.erase(from_right ? places.begin() : places.begin() + most,
                 from_right ? places.begin() + beyond : places.end());
  }
  Values parts;
  size_t begin = 0;
  for (const size_t at : places) {
    parts.push_back(Value::text(text.slice(begin, at - begin)));
    begin = at + separator.size();
  }
  parts.push_back(Value::text(text.slice(begin)));
  return parts;
}

template <bool from_right>
Value split(const Arguments& arguments) {
  const Value separator = arguments.get(1, "sep", Value::none());
  const int64_t given = integer_of(arguments.get(2, "maxsplit", Value::integer(-1)), "maxsplit");
  const int64_t most = std::clamp(given, int64_t{-1}, std::numeric_limits<int64_t>::max() - 1);
  if (separator.is_none()) return Value::list(split_at_blanks(self(arguments), most, from_right));
  return Value::list(
      split_at(self(arguments), text_at(arguments, 1, "sep").bytes(), most, from_right));
}
Value splitlines(const Arguments& arguments) {
  return Value::list(
      split_lines(self(arguments), truth(arguments.get(1, "keepends", Value::boolean(false)))));
}

template <bool from_right>
Value partition(const Arguments& arguments) {
  const Text& separator = text_at(arguments, 1, "sep");
  Values parts = split_at(self(arguments), separator.bytes(), 1, from_right);
  if (parts.size() == 2) {
    parts.insert(parts.begin() + 1, Value::text(separator));
  } else {
    parts.insert(from_right ? parts.begin() : parts.end(), 2, Value::text(""));
  }
  return Value::list(std::move(parts), /*tuple=*/true);
}

// What is looked through: from the character of the third argument to that of the fourth.
struct Part {
  std::string_view bytes;
  int64_t before = 0;  // characters
};

// Null where it begins behind the text's end, where nothing is found.
std::optional<Part> part_of(const Arguments& arguments) {
  const std::string_view text = self(arguments).bytes();
  const Value begin = arguments.get(2, "start", Value::none());
  const Value end = arguments.get(3, "end", Value::none());
  if (begin.is_none() && end.is_none()) return Part{text};
  const Offsets offsets = character_offsets(text);
  const int64_t size = std::ssize(offsets) - 1;
  const auto place = [&](const Value& given, int64_t otherwise) {
    const int64_t at = given.is_none() ? otherwise : integer_of(given, "a bound");
    return at >= 0 ? at : at < -size ? 0 : at + size;
  };
  const int64_t from = place(begin, 0), to = std::min(place(end, size), size);
  if (from > size || to < from) return std::nullopt;
  const size_t first = offsets[static_cast<size_t>(from)];
  return Part{text.substr(first, offsets[static_cast<size_t>(to)] - first), from};
}

// One, or any of a tuple.
template <bool from_right>
Value has_affix(const Arguments& arguments) {
  const Value& affix = arguments.need(1, "the affix");
  const std::optional<Part> part = part_of(arguments);
  const auto fits = [&](const Value& one) {
    require(one.as_text() != nullptr, "expected a str for the affix, got a {}", one.type());
    const std::string& bytes = one.as_text()->bytes();
    spend(1 + static_cast<int64_t>(bytes.size() / 32));
    return part && (from_right ? part->bytes.ends_with(bytes) : part->bytes.starts_with(bytes));
  };
  const ListNode* all = affix.as_list();
  if (all == nullptr || !all->tuple) return Value::boolean(fits(affix));
  return Value::boolean(std::any_of(all->items.begin(), all->items.end(), fits));
}

Value removeprefix(const Arguments& arguments) {
  const std::string& prefix = text_at(arguments, 1, "prefix").bytes();
  spend(static_cast<int64_t>(prefix.size() / 32));
  const Text& text = self(arguments);
  return Value::text(text.bytes().starts_with(prefix) ? text.slice(prefix.size()) : text);
}
Value removesuffix(const Arguments& arguments) {
  const std::string& suffix = text_at(arguments, 1, "suffix").bytes();
  spend(static_cast<int64_t>(suffix.size() / 32));
  const Text& text = self(arguments);
  return Value::text(text.bytes().ends_with(suffix) ? text.slice(0, text.size() - suffix.size())
                                                    : text);
}

Value replace(const Arguments& arguments) {
  return Value::text(replaced(self(arguments), text_at(arguments, 1, "old").bytes(),
                              text_at(arguments, 2, "new"),
                              integer_of(arguments.get(3, "count", Value::integer(-1)), "count")));
}

// In characters; -1 where it isn't found.
int64_t place_of(const Arguments& arguments, bool from_right) {
  const std::string& sought = text_at(arguments, 1, "sub").bytes();
  const std::optional<Part> part = part_of(arguments);
  if (!part) return -1;
  const std::string_view text = part->bytes;
  if (from_right) {
    spend(1 + static_cast<int64_t>(text.size() * std::max<size_t>(sought.size(), 1) / 32));
  }
  const size_t at = from_right ? text.rfind(sought) : find_bytes(text, sought);
  if (at == text.npos) return -1;
  return part->before + std::ssize(character_offsets(text.substr(0, at))) - 1;
}
template <bool from_right>
Value find(const Arguments& arguments) {
  return Value::integer(place_of(arguments, from_right));
}
template <bool from_right>
Value index(const Arguments& arguments) {
  const int64_t place = place_of(arguments, from_right);
  require(place >= 0, "index: it isn't in the text");
  return Value::integer(place);
}

// Nothing is before each character, and at the end.
Value count(const Arguments& arguments) {
  const std::string& sought = text_at(arguments, 1, "sub").bytes();
  const std::optional<Part> part = part_of(arguments);
  if (!part) return Value::integer(0);
  if (sought.empty()) return Value::integer(std::ssize(character_offsets(part->bytes)));
  int64_t times = 0;
  for (size_t at = find_bytes(part->bytes, sought); at != part->bytes.npos;
       at = find_bytes(part->bytes, sought, at + sought.size())) {
    ++times;
  }
  return Value::integer(times);
}

Value join(const Arguments& arguments) {
  Text out;
  bool first = true;
  for (const Value& item : items_of(arguments.need(1, "the list"))) {
    require(item.as_text() != nullptr, "join: expected texts, got a {}", item.type());
    if (!std::exchange(first, false)) out.append(self(arguments));
    out.append(*item.as_text());
  }
  return Value::text(std::move(out));
}

// {} and {0} and {name}, with !r or !s, and a format behind a colon.
Value format(const Arguments& arguments) {
  const Text& text = self(arguments);
  const std::string& bytes = text.bytes();
  Text out;
  size_t next = 1;
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.append(text.slice(at, brace - at));
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.append(bytes.substr(brace, 1));
      at = brace + 2;
      continue;
    }
    const size_t end = bytes.find('}', brace);
    require(bytes[brace] == '{' && end != bytes.npos, "format: a brace without its other");
    std::string field = bytes.substr(brace + 1, end - brace - 1);
    const size_t colon = std::min(field.find(':'), field.size());
    const std::string spec = field.substr(std::min(colon + 1, field.size()));
    field.resize(colon);
    const bool as_repr = field.ends_with("!r"), as_text = field.ends_with("!s");
    if (as_repr || as_text) field.resize(field.size() - 2);
    const bool place =
        !field.empty() && field.size() < 4 &&
        std::all_of(field.begin(), field.end(), [](char c) { return c >= '0' && c <= '9'; });
    require(field.find_first_of("!.[") == field.npos, "format: {{{}}} is not supported",
            field.substr(0, 100));
    const Value& value = field.empty() ? arguments.need(next++, "of format")
                         : place       ? arguments.need(1 + std::stoul(field), "of format")
                                       : arguments.need(std::string::npos, field);
    out.append(formatted(as_repr   ? Value::text(repr_of(value))
                         : as_text ? Value::text(text_of(value))
                                   : value,
                         spec));
    at = end + 1;
  }
  return Value::text(std::move(out));
}

// As many characters as the width; `left` says how many of those that are missing come first.
template <class Left>
Value padded(const Arguments& arguments, Left left) {
  const int64_t width = integer_of(arguments.get(1, "width", Value::integer(80)), "width");
  const Value fill = arguments.get(2, "fillchar", Value::text(" "));
  require(fill.as_text() != nullptr && length_of(fill) == 1,
          "expected one character to fill with, got {} of a {}", length_of(fill), fill.type());
  const int64_t size = length_of(arguments.given[0]);
  const int64_t missing = width > size ? width - size : 0;
  const int64_t before = left(missing, width);
  Text out = *operate("*", fill, Value::integer(before)).as_text();
  out.append(self(arguments));
  out.append(*operate("*", fill, Value::integer(missing - before)).as_text());
  return Value::text(std::move(out));
}
Value center(const Arguments& arguments) {
  return padded(arguments,
                [](int64_t missing, int64_t width) { return missing / 2 + (missing & width & 1); });
}
Value ljust(const Arguments& arguments) {
  return padded(arguments, [](int64_t, int64_t) { return int64_t{0}; });
}
Value rjust(const Arguments& arguments) {
  return padded(arguments, [](int64_t missing, int64_t) { return missing; });
}
// Zeros behind the sign.
Value zfill(const Arguments& arguments) {
  const int64_t width = integer_of(arguments.need(1, "width"), "width");
  const Text& text = self(arguments);
  const bool sign = text.bytes().starts_with('+') || text.bytes().starts_with('-');
  const int64_t size = length_of(arguments.given[0]);
  Text out = text.slice(0, sign ? 1 : 0);
  const Value zeros = Value::integer(width > size ? width - size : 0);
  out.append(*operate("*", Value::text("0"), zeros).as_text());
  out.append(text.slice(sign ? 1 : 0));
  return Value::text(std::move(out));
}

template <auto is>
Value all_are(const Arguments& arguments) {
  const std::string_view text = self(arguments).bytes();
  const Offsets offsets = character_offsets(text);
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (!is(character(text.substr(offsets[i], offsets[i + 1] - offsets[i])))) {
      return Value::boolean(false);
    }
  }
  return Value::boolean(!text.empty());
}
bool is_number(UChar32 c) {
  return u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE;
}
bool is_digit(UChar32 c) {
  const int32_t type = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
  return type == U_NT_DECIMAL || type == U_NT_DIGIT;
}
bool is_alphanumeric(UChar32 c) {
  return u_isalpha(c) || is_number(c);
}

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

using Methods = std::map<std::string_view, Builtin>;

const Methods& methods_of_texts() {
  static const Methods methods = {{"upper", in_case<upper_case>},
                                  {"lower", in_case<lower_case>},
                                  {"capitalize", capitalize},
                                  {"title", title},
                                  {"strip", strip<true, true>},
                                  {"lstrip", strip<true, false>},
                                  {"rstrip", strip<false, true>},
                                  {"split", split<kFromLeft>},
                                  {"rsplit", split<kFromRight>},
                                  {"splitlines", splitlines},
                                  {"partition", partition<kFromLeft>},
                                  {"rpartition", partition<kFromRight>},
                                  {"startswith", has_affix<kFromLeft>},
                                  {"endswith", has_affix<kFromRight>},
                                  {"removeprefix", removeprefix},
                                  {"removesuffix", removesuffix},
                                  {"replace", replace},
                                  {"find", find<kFromLeft>},
                                  {"rfind", find<kFromRight>},
                                  {"index", index<kFromLeft>},
                                  {"rindex", index<kFromRight>},
                                  {"count", count},
                                  {"join", join},
                                  {"format", format},
                                  {"isdigit", all_are<is_digit>},
                                  {"isnumeric", all_are<is_number>},
                                  {"isdecimal", all_are<u_isdigit>},
                                  {"isalpha", all_are<u_isalpha>},
                                  {"isalnum", all_are<is_alphanumeric>},
                                  {"isspace", all_are<u_isUWhiteSpace>},
                                  {"isupper", is_in_case<upper_case, lower_case>},
                                  {"islower", is_in_case<lower_case, upper_case>},
                                  {"casefold", in_case<lower_case>},
                                  {"swapcase", swapcase},
                                  {"center", center},
                                  {"ljust", ljust},
                                  {"rjust", rjust},
                                  {"zfill", zfill}};
  return methods;
}

const Methods& methods_of(const Value& object) {
  static const Methods of_dicts = {{"get", get},           {"keys", keys},     {"values", values},
                                   {"items", items},       {"copy", copy},     {"pop", changes},
                                   {"popitem", changes},   {"clear", changes}, {"update", changes},
                                   {"setdefault", changes}};
  static const Methods of_lists = {
      {"index", list_index}, {"count", list_count}, {"copy", copy},      {"append", changes},
      {"extend", changes},   {"insert", changes},   {"pop", changes},    {"remove", changes},
      {"clear", changes},    {"sort", changes},     {"reverse", changes}};
  static const Methods of_tuples = {{"index", list_index}, {"count", list_count}};
  static const Methods of_loops = {{"cycle", cycle}, {"changed", changed}};
  static const Methods none;
  if (object.as_text() != nullptr) return methods_of_texts();
  if (object.as_dict() != nullptr) return of_dicts;
  if (const ListNode* list = object.as_list()) {
    return list->view != nullptr ? none : list->tuple ? of_tuples : of_lists;
  }
  return object.as_loop() != nullptr ? of_loops : none;
}

Builtin found_in(const Methods& methods, std::string_view name) {
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

}  // namespace

Text upper_case(const Text& text) {
  return mapped(text, [](std::string_view bytes, size_t) { return cased(bytes, true); });
}
Text lower_case(const Text& text) {
  return mapped(text, [](std::string_view bytes, size_t) { return cased(bytes, false); });
}

Text stripped(const Text& text, const Value& characters, bool left, bool right) {
  const std::string_view bytes = text.bytes();
  const Offsets offsets = character_offsets(bytes);
  std::set<std::string> all;
  if (characters.as_text() != nullptr) {
    for (const Value& one : items_of(characters)) all.insert(one.as_text()->bytes());
  } else {
    require(characters.is_none(), "strip: expected a str, got a {}", characters.type());
  }
  const auto goes = [&](size_t i) {
    const std::string_view one = bytes.substr(offsets[i], offsets[i + 1] - offsets[i]);
    return characters.is_none() ? is_blank(one) : all.count(std::string(one)) > 0;
  };
  size_t begin = 0;
  size_t end = offsets.size() - 1;
  while (left && begin < end && goes(begin)) ++begin;
  while (right && begin < end && goes(end - 1)) --end;
  return text.slice(offsets[begin], offsets[end] - offsets[begin]);
}

Values split_lines(const Text& text, bool keeps_ends) {
  Values lines;
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    const UChar32 c = character(bytes.substr(at, step.bytes));
    size_t end = at + step.bytes;
    const bool breaks = (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                        c == 0x2028 || c == 0x2029;
    if (breaks) {
      if (c == '\r' && end < bytes.size() && bytes[end] == '\n') ++end;
      lines.push_back(Value::text(text.slice(begin, (keeps_ends ? end : at) - begin)));
      begin = end;
    }
    at = end;
  }
  if (begin < bytes.size()) lines.push_back(Value::text(text.slice(begin)));
  return lines;
}

Text replaced(const Text& text, std::string_view old, const Text& other, int64_t count) {
  Text out;
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  size_t from = 0;
  for (int64_t done = 0; count < 0 || done < count; ++done) {
    const size_t at = find_bytes(bytes, old, from);
    if (at == bytes.npos) break;
    out.append(text.slice(begin, at - begin));
    out.append(other);
    begin = at + old.size();
    // Nothing is found before each character, and at the end.
    from = !old.empty()        ? begin
           : at < bytes.size() ? at + utf8_step(bytes.substr(at)).bytes
                               : at + 1;
  }
  out.append(text.slice(begin));
  return out;
}

Builtin find_method(const Value& object, std::string_view name) {
  return found_in(methods_of(object), name);
}

Builtin find_text_method(std::string_view name) {
  return found_in(methods_of_texts(), name);
}

}  // namespace attnres::jinja
