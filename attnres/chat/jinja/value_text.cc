// Values as Python writes them.
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

// Python's repr of a float: the shortest digits, with an exponent below 1e-4 and from 1e16.
std::string number_text(double value, bool json) {
  if (std::isnan(value)) return json ? "NaN" : "nan";
  if (std::isinf(value)) {
    return fmt::format("{}{}", value < 0 ? "-" : "", json ? "Infinity" : "inf");
  }
  char digits[64];
  const double size = std::abs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto end = std::to_chars(digits, digits + sizeof digits, value,
                                 plain ? std::chars_format::fixed : std::chars_format::scientific);
  std::string text(digits, end.ptr);
  if (plain && text.find('.') == text.npos) text += ".0";
  return text;
}

std::string escaped(UChar32 c, char quote) {
  if (c == '\n') return "\\n";
  if (c == '\r') return "\\r";
  if (c == '\t') return "\\t";
  if (c == '\\' || c == quote) return fmt::format("\\{}", static_cast<char>(c));
  if (is_printable(c)) return "";
  return c < 0x100     ? fmt::format("\\x{:02x}", c)
         : c < 0x10000 ? fmt::format("\\u{:04x}", c)
                       : fmt::format("\\U{:08x}", c);
}

std::string json_escaped(UChar32 c, bool ascii) {
  constexpr std::string_view kPlain = "\b\f\n\r\t\"\\";
  constexpr std::string_view kLetters = "bfnrt\"\\";
  if (c < 0x80) {
    const size_t at = kPlain.find(static_cast<char>(c));
    if (at != kPlain.npos) return fmt::format("\\{}", kLetters[at]);
    return c < 0x20 ? fmt::format("\\u{:04x}", c) : "";
  }
  if (!ascii) return "";
  if (c < 0x10000) return fmt::format("\\u{:04x}", c);
  return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((c - 0x10000) >> 10),
                     0xdc00 + ((c - 0x10000) & 0x3ff));
}

// Between quotes, each character as `escape` writes it, or as it is where that gives nothing.
template <class Escape>
void append_quoted(Text& out, const Text& text, std::string_view quote, Escape escape) {
  out.append(quote);
  const std::string_view bytes = text.bytes();
  spend(static_cast<int64_t>(bytes.size() / 4));
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Step step = utf8_step(bytes.substr(at));
    const std::string other = escape(character(bytes.substr(at, step.bytes)));
    if (!other.empty()) {
      out.append(text.slice(begin, at - begin));
      out.append(other, text.written(at));
      begin = at + step.bytes;
    }
    at += step.bytes;
  }
  out.append(text.slice(begin));
  out.append(quote);
}

void append_repr(Text& out, const Value& value, bool sorted);

void append_list(Text& out, const ListNode& list, bool sorted) {
  require(!list.generator() && !list.range(), "a {} has no text; make a list of it", list.view);
  if (list.view != nullptr) {
    out.append(list.view);
    out.append("(");
  }
  out.append(list.tuple ? "(" : "[");
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out.append(", ");
    append_repr(out, list.items[i], sorted);
  }
  if (list.tuple && list.items.size() == 1) out.append(",");
  out.append(list.tuple ? ")" : "]");
  if (list.view != nullptr) out.append(")");
}

Entries sorted_entries(Entries entries) {
  std::stable_sort(entries.begin(), entries.end(),
                   [](const auto& a, const auto& b) { return less(a.first, b.first); });
  return entries;
}

void append_repr(Text& out, const Value& value, bool sorted) {
  if (const Text* text = value.as_text()) {
    const std::string& bytes = text->bytes();
    const bool twice = bytes.find('\'') != bytes.npos && bytes.find('"') == bytes.npos;
    const char quote = twice ? '"' : '\'';
    append_quoted(out, *text, {&quote, 1}, [&](UChar32 c) { return escaped(c, quote); });
  } else if (const ListNode* list = value.as_list()) {
    append_list(out, *list, sorted);
  } else if (const DictNode* dict = value.as_dict()) {
    const char* between = "";
    out.append("{");
    for (const auto& [key, item] : sorted ? sorted_entries(dict->entries) : dict->entries) {
      out.append(std::exchange(between, ", "));
      append_repr(out, key, sorted);
      out.append(": ");
      append_repr(out, item, sorted);
    }
    out.append("}");
  } else if (value.is_undefined()) {
    out.append("Undefined");
  } else {
    out.append(text_of(value));
  }
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  void write(const Value& value, int64_t level) {
    if (const Text* text = value.as_text()) {
      quote(*text);
    } else if (const bool* boolean = value.as_boolean()) {
      out_.append(*boolean ? "true" : "false");
    } else if (value.is_none()) {
      out_.append("null");
    } else if (const double* number = value.as_number()) {
      out_.append(number_text(*number, /*json=*/true));
    } else if (value.as_integer() != nullptr) {
      out_.append(text_of(value));
    } else if (const ListNode* list = value.as_list(); list != nullptr && list->view == nullptr) {
      write_items("[", "]", list->items, level, [&](const Value& item) { write(item, level + 1); });
    } else if (const DictNode* dict = value.as_dict()) {
      write_dict(*dict, level);
    } else {
      if (value.is_undefined()) fail("tojson: {} is undefined", value.undefined_name());
      fail("tojson: a {} has no JSON", value.type());
    }
  }
  Text take() { return std::move(out_); }

 private:
  void quote(const Text& text) {
    append_quoted(out_, text, "\"", [&](UChar32 c) { return json_escaped(c, style_.ascii); });
  }

  void write_dict(const DictNode& dict, int64_t level) {
    const Entries entries = style_.sorted ? sorted_entries(dict.entries) : dict.entries;
    write_items("{", "}", entries, level, [&](const auto& entry) {
      const Value& key = entry.first;
      if (const Text* text = key.as_text()) {
        quote(*text);
      } else {
        require(is_numeric(key) || key.is_none(), "tojson: a {} cannot be a key", key.type());
        out_.append("\"");
        write(key, level);
        out_.append("\"");
      }
      out_.append(style_.after_key);
      write(entry.second, level + 1);
    });
  }

  template <class Items, class Write>
  void write_items(std::string_view open, std::string_view close, const Items& items, int64_t level,
                   Write write_item) {
    out_.append(open);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out_.append(style_.between);
      break_line(level + 1);
      write_item(items[i]);
    }
    if (!items.empty()) break_line(level);
    out_.append(close);
  }

  void break_line(int64_t level) {
    if (!style_.indent) return;
    out_.append("\n");
    for (int64_t i = 0; i < level; ++i) out_.append(*style_.indent);
  }

  const JsonStyle& style_;
  Text out_;
};

}  // namespace

bool is_blank(UChar32 c) {
  return u_isUWhiteSpace(c) || (c >= 0x1c && c <= 0x1f);
}

bool is_printable(UChar32 c) {
  constexpr uint32_t kOthersAndSeparators = U_GC_C_MASK | U_GC_Z_MASK;
  return c == ' ' || (U_GET_GC_MASK(c) & kOthersAndSeparators) == 0;
}

Text text_of(const Value& value) {
  if (const Text* text = value.as_text()) return *text;
  if (const bool* boolean = value.as_boolean()) return Text(*boolean ? "True" : "False");
  if (const int64_t* integer = value.as_integer()) return Text(std::to_string(*integer));
  if (const double* number = value.as_number()) return Text(number_text(*number, /*json=*/false));
  if (value.is_none()) return Text("None");
  if (value.is_undefined()) return {};
  require(value.as_list() || value.as_dict(), "a {} has no text", value.type());
  return repr_of(value);
}

Text repr_of(const Value& value, bool sorted) {
  Text out;
  append_repr(out, value, sorted);
  return out;
}

Text json_of(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  writer.write(value, 0);
  return writer.take();
}

}  // namespace attnres::jinja
