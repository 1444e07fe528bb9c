// Texts and classes of characters in the form of grammars that XGrammar reads.
#pragma once

#include <string>
#include <string_view>

#include "attnres/grammar/characters.h"

namespace attnres {

// "..." and [...]. Only by escapes of a fixed length: \x takes all digits that follow.
std::string ebnf_text(std::u32string_view text);
// Of a character or more.
std::string ebnf_class(const Characters& characters);

}  // namespace attnres
