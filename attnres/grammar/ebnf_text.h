// Texts and classes of characters in the form of grammars that XGrammar reads.
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

// Whether it is a character: neither half of a surrogate pair nor beyond U+10FFFF.
bool is_character(char32_t code_point);

// The characters of some ranges, and all others: in order, apart, without surrogates.
std::vector<CharacterRange> characters_of(const std::vector<CharacterRange>& ranges);
std::vector<CharacterRange> characters_beside(const std::vector<CharacterRange>& ranges);

// "..." and [...]. Only by escapes of a fixed length: \x takes all digits that follow.
std::string ebnf_text(std::u32string_view text);
// Of what characters_of or characters_beside give, a character or more.
std::string ebnf_class(const std::vector<CharacterRange>& characters);

}  // namespace attnres
