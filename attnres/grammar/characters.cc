#include "attnres/grammar/characters.h"

#include <algorithm>
#include <array>

#include "attnres/text/utf8.h"

namespace attnres {
namespace {

constexpr char32_t kFirstSurrogate = 0xd800, kLastSurrogate = 0xdfff;

void add(Characters& ranges, char32_t first, char32_t last) {
  if (first <= last) ranges.push_back({first, last});
}

}  // namespace

bool is_character(char32_t code_point) {
  return code_point <= kLastCharacter &&
         (code_point < kFirstSurrogate || code_point > kLastSurrogate);
}

Characters characters_beside(const std::vector<CharacterRange>& ranges) {
  std::vector<CharacterRange> taken = ranges;
  taken.push_back({kFirstSurrogate, kLastSurrogate});
  std::sort(taken.begin(), taken.end(),
            [](const CharacterRange& a, const CharacterRange& b) { return a.first < b.first; });
  Characters others;
  char32_t next = 0;  // that no range so far takes
  for (const auto& [first, last] : taken) {
    if (first > next) add(others, next, first - 1);
    if (last >= next) next = last + 1;
  }
  add(others, next, kLastCharacter);
  return others;
}

Characters characters_of(const std::vector<CharacterRange>& ranges) {
  return characters_beside(characters_beside(ranges));
}

Characters characters_without(const Characters& characters, const Characters& others) {
  std::vector<CharacterRange> left_out = characters_beside(characters);
  left_out.insert(left_out.end(), others.begin(), others.end());
  return characters_beside(left_out);
}

bool is_one(const Characters& characters) {
  return characters.size() == 1 && characters[0].first == characters[0].last;
}

std::u32string characters_in(std::string_view text) {
  std::u32string result;
  while (!text.empty()) {
    const size_t bytes = utf8_step(text).bytes;
    constexpr std::array<unsigned, 5> kFirstBits = {0, 0x7f, 0x1f, 0x0f, 0x07};
    char32_t c = static_cast<unsigned char>(text[0]) & kFirstBits[bytes];
    for (size_t i = 1; i < bytes; ++i) c = c << 6 | (static_cast<unsigned char>(text[i]) & 0x3f);
    result += c;
    text.remove_prefix(bytes);
  }
  return result;
}

}  // namespace attnres
