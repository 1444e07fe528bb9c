// Methods of texts, but for those of letters (letter_methods.cc).
#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <optional>
#include <set>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

Value strip_sides(const Arguments& arguments, bool left, bool right) {
  return Value::text(
      stripped(self(arguments), arguments.get(1, "chars", Value::none()), left, right));
}
Value strip(const Arguments& arguments) {
  return strip_sides(arguments, true, true);
}
Value lstrip(const Arguments& arguments) {
  return strip_sides(arguments, true, false);
}
Value rstrip(const Arguments& arguments) {
  return strip_sides(arguments, false, true);
}

// At blanks, any number of them one separator.
Values split_at_blanks(const Text& text, int64_t most, bool from_right) {
  const std::string_view bytes = text.bytes();
  const Offsets offsets = character_offsets(bytes);
  std::vector<std::pair<size_t, size_t>, Counted<std::pair<size_t, size_t>>> words;
  for (size_t i = 0; i + 1 < offsets.size(); ++i) {
    if (is_blank(character(bytes.substr(offsets[i], offsets[i + 1] - offsets[i])))) continue;
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
  const auto wanted = [&] { return most < 0 || std::ssize(places) < most; };
  const std::string& bytes = text.bytes();
  if (from_right) {
    spend(1 + static_cast<int64_t>(bytes.size() * separator.size() / 32));
    for (size_t end = bytes.size(); wanted() && end >= separator.size();) {
      const size_t at = bytes.rfind(separator, end - separator.size());
      if (at == std::string::npos) break;
      places.insert(places.begin(), at);
      end = at;
    }
  } else {
    for (size_t at = 0; wanted(); at += separator.size()) {
      at = find_bytes(bytes, separator, at);
      if (at == std::string::npos) break;
      places.push_back(at);
    }
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

Value split_from(const Arguments& arguments, bool from_right) {
  const Value separator = arguments.get(1, "sep", Value::none());
  const int64_t given = integer_of(arguments.get(2, "maxsplit", Value::integer(-1)), "maxsplit");
  const int64_t most = std::clamp(given, int64_t{-1}, std::numeric_limits<int64_t>::max() - 1);
  if (separator.is_none()) return Value::list(split_at_blanks(self(arguments), most, from_right));
  return Value::list(
      split_at(self(arguments), text_at(arguments, 1, "sep").bytes(), most, from_right));
}
Value split(const Arguments& arguments) {
  return split_from(arguments, false);
}
Value rsplit(const Arguments& arguments) {
  return split_from(arguments, true);
}
Value splitlines(const Arguments& arguments) {
  return Value::list(
      split_lines(self(arguments), truth(arguments.get(1, "keepends", Value::boolean(false)))));
}

Value partition_from(const Arguments& arguments, bool from_right) {
  const Text& separator = text_at(arguments, 1, "sep");
  Values parts = split_at(self(arguments), separator.bytes(), 1, from_right);
  if (parts.size() == 2) {
    parts.insert(parts.begin() + 1, Value::text(separator));
  } else {
    parts.insert(from_right ? parts.begin() : parts.end(), 2, Value::text(""));
  }
  return Value::list(std::move(parts), /*tuple=*/true);
}
Value partition(const Arguments& arguments) {
  return partition_from(arguments, false);
}
Value rpartition(const Arguments& arguments) {
  return partition_from(arguments, true);
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
Value with_affix(const Arguments& arguments, bool at_end) {
  const Value& affix = arguments.need(1, "the affix");
  const std::optional<Part> part = part_of(arguments);
  const auto fits = [&](const Value& one) {
    require(one.as_text() != nullptr, "expected a str for the affix, got a {}", one.type());
    const std::string& bytes = one.as_text()->bytes();
    spend(1 + static_cast<int64_t>(bytes.size() / 32));
    return part && (at_end ? part->bytes.ends_with(bytes) : part->bytes.starts_with(bytes));
  };
  const ListNode* all = affix.as_list();
  if (all == nullptr || !all->tuple) return Value::boolean(fits(affix));
  return Value::boolean(std::any_of(all->items.begin(), all->items.end(), fits));
}
Value startswith(const Arguments& arguments) {
  return with_affix(arguments, false);
}
Value endswith(const Arguments& arguments) {
  return with_affix(arguments, true);
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
int64_t place_of(const Arguments& arguments, bool last) {
  const std::string& sought = text_at(arguments, 1, "sub").bytes();
  const std::optional<Part> part = part_of(arguments);
  if (!part) return -1;
  const std::string_view text = part->bytes;
  if (last) spend(1 + static_cast<int64_t>(text.size() * std::max<size_t>(sought.size(), 1) / 32));
  const size_t at = last ? text.rfind(sought) : find_bytes(text, sought);
  if (at == text.npos) return -1;
  return part->before + std::ssize(character_offsets(text.substr(0, at))) - 1;
}
Value find(const Arguments& arguments) {
  return Value::integer(place_of(arguments, false));
}
Value rfind(const Arguments& arguments) {
  return Value::integer(place_of(arguments, true));
}
Value index_from(const Arguments& arguments, bool last) {
  const int64_t place = place_of(arguments, last);
  require(place >= 0, "index: it isn't in the text");
  return Value::integer(place);
}
Value index(const Arguments& arguments) {
  return index_from(arguments, false);
}
Value rindex(const Arguments& arguments) {
  return index_from(arguments, true);
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

// name.attribute[item] of what format() is given; `next` is the place of one without a name.
Value field_value(const Arguments& arguments, std::string_view field, size_t* next) {
  const size_t end = std::min(field.find_first_of(".["), field.size());
  const std::string_view name = field.substr(0, end);
  const auto is_place = [](std::string_view text) {
    return !text.empty() && text.size() < 4 &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  Value value = name.empty()     ? arguments.need((*next)++, "of format")
                : is_place(name) ? arguments.need(1 + std::stoul(std::string(name)), "of format")
                                 : arguments.need(std::string::npos, name);
  for (field.remove_prefix(end); !field.empty();) {
    const bool item = field[0] == '[';
    const size_t stop =
        item ? field.find(']') : std::min(field.find_first_of(".[", 1), field.size());
    require(stop != field.npos && stop > 1, "format: a part of a field has no name");
    const std::string part(field.substr(1, stop - 1));
    value = !item            ? attribute_of(value, part)
            : is_place(part) ? item_of(value, Value::integer(std::stol(part)))
                             : item_of(value, Value::text(part));
    field.remove_prefix(stop + (item ? 1 : 0));
  }
  return value;
}

// {} and {0} and {name}, with !r or !s, and a format behind a colon.
Value format(const Arguments& arguments) {
  const Text& text = self(arguments);
  const std::string& bytes = text.bytes();
  Text out;
  size_t next = 1;
  bool by_place = false;
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
    require(field.find('!') == field.npos, "format: {{{}}} is not supported", field.substr(0, 100));
    const bool unnamed = field.empty() || field[0] == '.' || field[0] == '[';
    const bool placed = !unnamed && field[0] >= '0' && field[0] <= '9';
    require(!(unnamed && by_place) && !(placed && next > 1),
            "format: fields have numbers, or none has");
    by_place = by_place || placed;
    const Value value = field_value(arguments, field, &next);
    out.append(formatted(as_repr   ? Value::text(repr_of(value))
                         : as_text ? Value::text(text_of(value))
                                   : value,
                         spec));
    at = end + 1;
  }
  return Value::text(std::move(out));
}

// Blanks in the place of tabs, up to the next of columns.
Value expandtabs(const Arguments& arguments) {
  const int64_t size = integer_of(arguments.get(1, "tabsize", Value::integer(8)), "tabsize");
  Text out;
  int64_t column = 0;
  for (const Value& one : items_of(arguments.given[0])) {
    const std::string& bytes = one.as_text()->bytes();
    if (bytes == "\t") {
      const int64_t blanks = size > 0 ? size - column % size : 0;
      out.append(*operate("*", Value::text(" "), Value::integer(blanks)).as_text());
      column += blanks;
    } else {
      out.append(*one.as_text());
      column = bytes == "\n" || bytes == "\r" ? 0 : column + 1;
    }
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

}  // namespace

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
    return characters.is_none() ? is_blank(character(one)) : all.count(std::string(one)) > 0;
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

Text escaped_markup(const Text& given) {
  if (given.markup()) return given;
  constexpr std::pair<const char*, const char*> kEscapes[] = {
      {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  Text text = given;
  for (const auto& [plain, escaped] : kEscapes) text = replaced(text, plain, Text(escaped), -1);
  return text;
}

Text replaced(const Text& text, std::string_view old, const Text& other, int64_t count) {
  Text out;
  out.set_markup(text.markup());
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

Builtin find_text_method(std::string_view name) {
  static const Builtins methods = {{"strip", strip},
                                   {"lstrip", lstrip},
                                   {"rstrip", rstrip},
                                   {"split", split},
                                   {"rsplit", rsplit},
                                   {"splitlines", splitlines},
                                   {"partition", partition},
                                   {"rpartition", rpartition},
                                   {"startswith", startswith},
                                   {"endswith", endswith},
                                   {"removeprefix", removeprefix},
                                   {"removesuffix", removesuffix},
                                   {"replace", replace},
                                   {"find", find},
                                   {"rfind", rfind},
                                   {"index", index},
                                   {"rindex", rindex},
                                   {"count", count},
                                   {"join", join},
                                   {"format", format},
                                   {"expandtabs", expandtabs},
                                   {"center", center},
                                   {"ljust", ljust},
                                   {"rjust", rjust},
                                   {"zfill", zfill}};
  const auto found = methods.find(name);
  return found == methods.end() ? find_letter_method(name) : found->second;
}

}  // namespace attnres::jinja
