#include "attnres/text/token_class.h"

#include <cstdint>
#include <cstring>

#include "attnres/text/utf8.h"

namespace attnres {
namespace {

// The code point of a whole character of UTF-8.
uint32_t code_point(std::string_view character) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(character[i]); };
  if (character.size() == 1) return byte(0);
  uint32_t code = byte(0) & (0x7fU >> character.size());
  for (size_t i = 1; i < character.size(); ++i) code = code << 6 | (byte(i) & 0x3fU);
  return code;
}

TokenClass class_of_ascii(char c) {
  if (std::strchr(" \t\n\r\v\f", c) != nullptr && c != '\0') return TokenClass::whitespace;
  if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return TokenClass::letters;
  if (c >= '0' && c <= '9') return TokenClass::digits;
  return c > ' ' && c < 0x7f ? TokenClass::punctuation : TokenClass::other;
}

TokenClass class_of(uint32_t code) {
  const auto within = [&](uint32_t first, uint32_t last) { return code >= first && code <= last; };
  if (code < 0x80) return class_of_ascii(static_cast<char>(code));
  if (code == 0xa0 || within(0x2000, 0x200a) || within(0x2028, 0x2029) || code == 0x202f ||
      code == 0x205f || code == 0x3000) {
    return TokenClass::whitespace;
  }
  if (within(0xa1, 0xbf) || within(0x2000, 0x206f) || within(0x3001, 0x303f)) {
    return TokenClass::punctuation;
  }
  if (within(0x80, 0x9f) || within(0x2070, 0x2bff) || code >= 0x1f000) return TokenClass::other;
  return TokenClass::letters;
}

// Which of a token's characters says what it is.
int rank(TokenClass of_character) {
  constexpr std::array kRanks = {4, 3, 0, 2, 1};  // in the order of TokenClass
  return kRanks.at(static_cast<size_t>(of_character));
}

}  // namespace

TokenClass token_class(std::string_view text) {
  if (text.empty()) return TokenClass::other;
  TokenClass token = TokenClass::whitespace;
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text);
    const TokenClass here = step.kind == Utf8Step::Kind::character
                                ? class_of(code_point(text.substr(0, step.bytes)))
                                : TokenClass::other;
    if (rank(here) > rank(token)) token = here;
    text.remove_prefix(step.bytes);
  }
  return token;
}

}  // namespace attnres
