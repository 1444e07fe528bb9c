#include "attnres/grammar/ebnf_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <cstdint>

#include "attnres/support/error.h"

namespace attnres {
namespace {

constexpr char32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

std::string escaped(char32_t c) {
  const auto number = static_cast<uint32_t>(c);
  return c <= 0xffff ? fmt::format("\\u{:04x}", number) : fmt::format("\\U{:08x}", number);
}

// Letters and digits mean themselves everywhere.
std::string in_class(char32_t c) {
  const bool is_plain = (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
  return is_plain ? std::string(1, static_cast<char>(c)) : escaped(c);
}

void add(std::vector<CharacterRange>& ranges, char32_t first, char32_t last) {
  if (first <= last) ranges.push_back({first, last});
}

}  // namespace

bool is_character(char32_t code_point) {
  return code_point <= kLastCharacter &&
         (code_point < kFirstSurrogate || code_point > kLastSurrogate);
}

std::vector<CharacterRange> characters_beside(const std::vector<CharacterRange>& ranges) {
  std::vector<CharacterRange> taken = ranges;
  taken.push_back({kFirstSurrogate, kLastSurrogate});
  std::sort(taken.begin(), taken.end(),
            [](const CharacterRange& a, const CharacterRange& b) { return a.first < b.first; });
  std::vector<CharacterRange> others;
  char32_t next = 0;  // that no range so far takes
  for (const auto& [first, last] : taken) {
    if (first > next) add(others, next, first - 1);
    if (last >= next) next = last + 1;
  }
  add(others, next, kLastCharacter);
  return others;
}

std::vector<CharacterRange> characters_of(const std::vector<CharacterRange>& ranges) {
  return characters_beside(characters_beside(ranges));
}

std::string ebnf_text(std::u32string_view text) {
  std::string result = "\"";
  for (const char32_t c : text) {
    const bool is_plain = c >= ' ' && c <= '~' && c != '"' && c != '\\';
    result += is_plain ? std::string(1, static_cast<char>(c)) : escaped(c);
  }
  return result + "\"";
}

std::string ebnf_class(const std::vector<CharacterRange>& characters) {
  require(!characters.empty(), "a class of no characters");
  std::string result = "[";
  for (const auto& [first, last] : characters) {
    result += in_class(first);
    if (last > first) result += "-" + in_class(last);
  }
  return result + "]";
}

}  // namespace attnres
