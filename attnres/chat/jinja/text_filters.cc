// Filters that give texts.
#include <fmt/core.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <string>
#include <utility>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

// A method of texts on whatever it is, as text.
template <size_t n>
struct Name {
  constexpr Name(const char (&text)[n]) { std::copy(text, text + n, name); }
  char name[n];
};
template <Name method>
Value as_text(const Arguments& arguments) {
  Arguments all = arguments;
  all.given.at(0) = Value::text(text_of(operand(arguments)));
  return find_text_method(method.name)(all);
}

// Of what is not text too, and with no regard to markup.
Value replace_filter(const Arguments& arguments) {
  Text text = text_of(operand(arguments));
  text.set_markup(false);
  return Value::text(replaced(text, text_of(arguments.need(1, "old")).bytes(),
                              text_of(arguments.need(2, "new")),
                              integer_of(arguments.get(3, "count", Value::integer(-1)), "count")));
}

// Markup, to which other texts are escaped when they are added.
Value marked_up(Text text) {
  text.set_markup(true);
  return Value::text(std::move(text));
}
Value safe(const Arguments& arguments) {
  return marked_up(text_of(operand(arguments)));
}
Value escape(const Arguments& arguments) {
  return marked_up(escaped_markup(text_of(operand(arguments))));
}
Value forceescape(const Arguments& arguments) {
  Text text = text_of(operand(arguments));
  text.set_markup(false);
  return marked_up(escaped_markup(text));
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
  out.set_markup(text.markup());
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
    const UChar32 c = character(std::string_view(bytes).substr(at, step.bytes));
    const bool word =
        c == '_' ||
        (c >= 0 && (u_isalpha(c) || u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE) != U_NT_NONE));
    if (word && !within) ++words;
    within = word;
    at += step.bytes;
  }
  return Value::integer(words);
}

// What stands between two marks is left out, as often as there are both.
Text without(const Text& text, std::string_view open, std::string_view close) {
  Text out;
  size_t done = 0;
  for (size_t begin = find_bytes(text.bytes(), open); begin != std::string::npos;
       begin = find_bytes(text.bytes(), open, done)) {
    const size_t end = find_bytes(text.bytes(), close, begin);
    if (end == std::string::npos) break;
    out.append(text.slice(done, begin - done));
    done = end + close.size();
  }
  out.append(text.slice(done));
  return out;
}

// Without comments and tags, blanks as one space each, and the five characters that `escape`
// writes otherwise.
Value striptags(const Arguments& arguments) {
  const Text plain = without(without(text_of(operand(arguments)), "<!--", "-->"), "<", ">");
  Text text;
  const Arguments whole = {.given = {Value::text(plain)}};
  for (const Value& word : items_of(find_text_method("split")(whole))) {
    if (text.size() > 0) text.append(" ");
    text.append(*word.as_text());
  }
  constexpr std::pair<const char*, const char*> kMeant[] = {
      {"&lt;", "<"},   {"&gt;", ">"},    {"&#39;", "'"}, {"&#x27;", "'"},
      {"&#34;", "\""}, {"&quot;", "\""}, {"&amp;", "&"}};
  for (const auto& [escaped, meant] : kMeant) text = replaced(text, escaped, Text(meant), -1);
  return Value::text(std::move(text));
}

// Of a query, slashes too, and blanks as a plus.
void append_quoted_url(Text& out, const Value& value, bool query) {
  const Text text = text_of(value);
  const std::string_view plain = query ? "-._~" : "-._~/";
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text.bytes()[i];
    const bool is_plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') ||
                          (c >= 'A' && c <= 'Z') || plain.find(c) != plain.npos;
    if (is_plain) {
      out.append(text.slice(i, 1));
    } else if (query && c == ' ') {
      out.append("+", text.written(i));
    } else {
      out.append(fmt::format("%{:02X}", static_cast<unsigned char>(c)), text.written(i));
    }
  }
}

Value urlencode(const Arguments& arguments) {
  const Value& value = operand(arguments);
  Text out;
  if (value.as_dict() == nullptr && value.as_list() == nullptr) {
    append_quoted_url(out, value, /*query=*/false);
    return Value::text(std::move(out));
  }
  const Value pairs = value.as_dict() ? find_method(value, "items")({.given = {value}}) : value;
  for (const Value& pair : items_of(pairs)) {
    const Values both = items_of(pair);
    require(both.size() == 2, "urlencode: expected pairs");
    if (out.size() > 0) out.append("&");
    append_quoted_url(out, both[0], /*query=*/true);
    out.append("=");
    append_quoted_url(out, both[1], /*query=*/true);
  }
  return Value::text(std::move(out));
}

Value xmlattr(const Arguments& arguments) {
  const DictNode* dict = operand(arguments).as_dict();
  require(dict != nullptr, "xmlattr: expected a dict, got a {}", operand(arguments).type());
  Text out;
  for (const auto& [key, value] : dict->entries) {
    if (value.is_none() || value.is_undefined()) continue;
    const Text name = text_of(key);
    require(name.bytes().find_first_of(" \t\n\r\f\v/>=") == std::string::npos,
            "xmlattr: {} is no name of an attribute", name.bytes().substr(0, 100));
    if (out.size() > 0 || truth(arguments.get(1, "autospace", Value::boolean(true)))) {
      out.append(" ");
    }
    out.append(escaped_markup(name));
    out.append("=\"");
    out.append(escaped_markup(text_of(value)));
    out.append("\"");
  }
  return Value::text(std::move(out));
}

}  // namespace

const Builtins& text_filters() {
  static const Builtins filters = {{"capitalize", as_text<"capitalize">},
                                   {"center", as_text<"center">},
                                   {"e", escape},
                                   {"escape", escape},
                                   {"forceescape", forceescape},
                                   {"format", format_filter},
                                   {"indent", indent},
                                   {"lower", as_text<"lower">},
                                   {"replace", replace_filter},
                                   {"safe", safe},
                                   {"striptags", striptags},
                                   {"title", title_filter},
                                   {"trim", as_text<"strip">},
                                   {"truncate", truncate},
                                   {"upper", as_text<"upper">},
                                   {"urlencode", urlencode},
                                   {"wordcount", wordcount},
                                   {"wordwrap", wordwrap},
                                   {"xmlattr", xmlattr}};
  return filters;
}

}  // namespace attnres::jinja
