// Methods of texts that ask what each character is, and change cases.
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

// Whether the letter sigma ends a word there, so that it has another lower case.
bool ends_word(const Text& text, const Offsets& offsets, size_t at) {
  const auto cased_from = [&](int64_t from, int64_t step) {
    for (int64_t i = from; i >= 0 && i + 1 < std::ssize(offsets); i += step) {
      spend(1);
      const auto place = static_cast<size_t>(i);
      const UChar32 c = character(std::string_view(text.bytes())
                                      .substr(offsets[place], offsets[place + 1] - offsets[place]));
      if (!u_hasBinaryProperty(c, UCHAR_CASE_IGNORABLE)) return u_hasBinaryProperty(c, UCHAR_CASED);
    }
    return UBool(false);
  };
  const auto place = static_cast<int64_t>(at);
  return cased_from(place - 1, -1) && !cased_from(place + 1, 1);
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
    std::string changed = change(bytes, i);
    if (bytes == "Σ" && changed == "σ" && ends_word(text, offsets, i)) changed = "ς";
    out.append(changed, text.written(offsets[i]));
  }
  out.set_markup(text.markup());
  return out;
}

enum class Case { lower, upper, title, folded };

std::string cased(std::string_view bytes, Case wanted) {
  if (bytes.size() == 1) {
    const char c = bytes[0];
    const bool up = wanted == Case::upper || wanted == Case::title;
    if (up) return {c >= 'a' && c <= 'z' ? static_cast<char>(c - 32) : c};
    return {c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c};
  }
  if (utf8_step(bytes).kind != Utf8Step::Kind::character) return std::string(bytes);
  const icu::Locale& root = icu::Locale::getRoot();
  icu::UnicodeString whole(character(bytes));
  switch (wanted) {
    case Case::lower:
      whole.toLower(root);
      break;
    case Case::upper:
      whole.toUpper(root);
      break;
    case Case::title:
      whole.toTitle(nullptr, root);
      break;
    case Case::folded:
      whole.foldCase();
  }
  std::string out;
  whole.toUTF8String(out);
  return out;
}

Value upper(const Arguments& arguments) {
  return Value::text(upper_case(self(arguments)));
}
Value lower(const Arguments& arguments) {
  return Value::text(lower_case(self(arguments)));
}
Value capitalize(const Arguments& arguments) {
  return Value::text(mapped(self(arguments), [](std::string_view bytes, size_t at) {
    return cased(bytes, at == 0 ? Case::title : Case::lower);
  }));
}
Value title(const Arguments& arguments) {
  bool within = false;
  return Value::text(mapped(self(arguments), [&](std::string_view bytes, size_t) {
    std::string out = cased(bytes, within ? Case::lower : Case::title);
    within = u_isalpha(character(bytes));
    return out;
  }));
}

Value casefold(const Arguments& arguments) {
  return Value::text(mapped(
      self(arguments), [](std::string_view bytes, size_t) { return cased(bytes, Case::folded); }));
}

Value swapcase(const Arguments& arguments) {
  return Value::text(mapped(self(arguments), [](std::string_view bytes, size_t) {
    return cased(bytes, u_isupper(character(bytes)) ? Case::lower : Case::upper);
  }));
}

template <class Is>
Value all_are(const Arguments& arguments, Is is) {
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
Value isdecimal(const Arguments& arguments) {
  return all_are(arguments, u_isdigit);
}
Value isdigit(const Arguments& arguments) {
  return all_are(arguments, [](UChar32 c) {
    const int32_t type = u_getIntPropertyValue(c, UCHAR_NUMERIC_TYPE);
    return type == U_NT_DECIMAL || type == U_NT_DIGIT;
  });
}
Value isnumeric(const Arguments& arguments) {
  return all_are(arguments, is_number);
}
Value isalpha(const Arguments& arguments) {
  return all_are(arguments, u_isalpha);
}
Value isalnum(const Arguments& arguments) {
  return all_are(arguments, [](UChar32 c) { return u_isalpha(c) || is_number(c); });
}
Value isspace(const Arguments& arguments) {
  return all_are(arguments, is_blank);
}
Value isascii(const Arguments& arguments) {
  const std::string& text = self(arguments).bytes();
  return Value::boolean(std::all_of(text.begin(), text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; }));
}
// An empty text is.
Value isprintable(const Arguments& arguments) {
  return self(arguments).size() == 0 ? Value::boolean(true) : all_are(arguments, is_printable);
}
Value isidentifier(const Arguments& arguments) {
  bool first = true;
  return all_are(arguments, [&](UChar32 c) {
    const bool begins = std::exchange(first, false);
    return c == '_' || u_hasBinaryProperty(c, UCHAR_XID_START) ||
           (!begins && u_hasBinaryProperty(c, UCHAR_XID_CONTINUE));
  });
}
bool is_upper(UChar32 c) {
  return u_hasBinaryProperty(c, UCHAR_UPPERCASE);
}
bool is_lower(UChar32 c) {
  return u_hasBinaryProperty(c, UCHAR_LOWERCASE);
}

// Some of one kind, and none of another.
template <class Is, class IsOther>
Value some_and_none(const Arguments& arguments, Is is, IsOther is_other) {
  bool some = false;
  for (const Value& one : items_of(arguments.given[0])) {
    const UChar32 c = character(one.as_text()->bytes());
    if (is_other(c)) return Value::boolean(false);
    some = some || is(c);
  }
  return Value::boolean(some);
}
Value isupper(const Arguments& arguments) {
  return some_and_none(arguments, is_upper, [](UChar32 c) { return is_lower(c) || u_istitle(c); });
}
Value islower(const Arguments& arguments) {
  return some_and_none(arguments, is_lower, [](UChar32 c) { return is_upper(c) || u_istitle(c); });
}
// Upper case where words begin, and there only.
Value istitle(const Arguments& arguments) {
  bool within = false;
  const auto is_cased = [](UChar32 c) { return is_upper(c) || is_lower(c) || u_istitle(c); };
  return some_and_none(arguments, is_cased, [&](UChar32 c) {
    const bool wrong = is_cased(c) && is_lower(c) != within;
    within = is_cased(c);
    return wrong;
  });
}

}  // namespace

Text upper_case(const Text& text) {
  return mapped(text, [](std::string_view bytes, size_t) { return cased(bytes, Case::upper); });
}
Text lower_case(const Text& text) {
  return mapped(text, [](std::string_view bytes, size_t) { return cased(bytes, Case::lower); });
}

Builtin find_letter_method(std::string_view name) {
  static const Builtins methods = {{"upper", upper},
                                   {"lower", lower},
                                   {"capitalize", capitalize},
                                   {"title", title},
                                   {"isdigit", isdigit},
                                   {"isnumeric", isnumeric},
                                   {"isdecimal", isdecimal},
                                   {"isalpha", isalpha},
                                   {"isalnum", isalnum},
                                   {"isascii", isascii},
                                   {"isprintable", isprintable},
                                   {"isidentifier", isidentifier},
                                   {"istitle", istitle},
                                   {"isspace", isspace},
                                   {"isupper", isupper},
                                   {"islower", islower},
                                   {"casefold", casefold},
                                   {"swapcase", swapcase}};
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

}  // namespace attnres::jinja
