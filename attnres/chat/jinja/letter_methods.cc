// Methods of texts that ask what each character is, and change cases.
#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include "attnres/chat/jinja/builtins.h"
#include "attnres/text/utf8.h"

namespace attnres::jinja {
namespace {

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

Value upper(const Arguments& arguments) {
  return Value::text(upper_case(self(arguments)));
}
Value lower(const Arguments& arguments) {
  return Value::text(lower_case(self(arguments)));
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
  return all_are(arguments, u_isUWhiteSpace);
}
Value isupper(const Arguments& arguments) {
  const Text& text = self(arguments);
  return Value::boolean(upper_case(text).bytes() == text.bytes() &&
                        lower_case(text).bytes() != text.bytes());
}
Value islower(const Arguments& arguments) {
  const Text& text = self(arguments);
  return Value::boolean(lower_case(text).bytes() == text.bytes() &&
                        upper_case(text).bytes() != text.bytes());
}

}  // namespace

Text upper_case(const Text& text) {
  return mapped(text, [](std::string_view bytes, size_t) { return cased(bytes, true); });
}
Text lower_case(const Text& text) {
  return mapped(text, [](std::string_view bytes, size_t) { return cased(bytes, false); });
}

Builtin find_letter_method(std::string_view name) {
  static const Builtins methods = {
      {"upper", upper},         {"lower", lower},      {"capitalize", capitalize},
      {"title", title},         {"isdigit", isdigit},  {"isnumeric", isnumeric},
      {"isdecimal", isdecimal}, {"isalpha", isalpha},  {"isalnum", isalnum},
      {"isspace", isspace},     {"isupper", isupper},  {"islower", islower},
      {"casefold", lower},      {"swapcase", swapcase}};
  const auto found = methods.find(name);
  return found == methods.end() ? nullptr : found->second;
}

}  // namespace attnres::jinja
