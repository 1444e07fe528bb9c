#include "attnres/grammar/ebnf_text.h"

#include <fmt/core.h>

#include <cstdint>

#include "attnres/support/error.h"

namespace attnres {
namespace {

std::string escaped(char32_t c) {
  const auto number = static_cast<uint32_t>(c);
  return c <= 0xffff ? fmt::format("\\u{:04x}", number) : fmt::format("\\U{:08x}", number);
}

// Letters and digits mean themselves everywhere.
std::string in_class(char32_t c) {
  const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  return is_plain ? std::string(1, static_cast<char>(c)) : escaped(c);
}

}  // namespace

std::string ebnf_text(std::u32string_view text) {
  std::string result = "\"";
  for (const char32_t c : text) {
    const bool is_plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    result += is_plain ? std::string(1, static_cast<char>(c)) : escaped(c);
  }
  return result + "\"";
}

std::string ebnf_class(const Characters& characters) {
  require(!characters.empty(), "a class of no characters");
  std::string result = "[";
  for (const auto& [first, last] : characters) {
    result += in_class(first);
    if (last > first) result += "-" + in_class(last);
  }
  return result + "]";
}

}  // namespace attnres
