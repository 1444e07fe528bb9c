// Sets of characters, which are Unicode's scalar values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnres {

inline constexpr char32_t kLastCharacter = 0x10ffff;

// Code points from first to last.
struct CharacterRange {
  char32_t first, last;
};
// In order, apart, and without halves of surrogate pairs, where nothing else is said.
using Characters = std::vector<CharacterRange>;

// Whether it is a character: neither half of a surrogate pair nor beyond U+10FFFF.
bool is_character(char32_t code_point);

// Those of any ranges, and all others.
Characters characters_of(const std::vector<CharacterRange>& ranges);
Characters characters_beside(const std::vector<CharacterRange>& ranges);
// Those of one without those of the other.
Characters characters_without(const Characters& characters, const Characters& others);

bool is_one(const Characters& characters);

// The characters of a text that is valid UTF-8.
std::u32string characters_in(std::string_view text);

}  // namespace attnres
