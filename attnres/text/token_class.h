// What kind of text a token is, in a few classes.
#pragma once

#include <array>
#include <string_view>

namespace attnres {

enum class TokenClass { letters, digits, whitespace, punctuation, other };

inline constexpr std::array<const char*, 5> kTokenClassNames = {"letters", "digits", "whitespace",
                                                                "punctuation", "other"};

// The class of a token's text: `whitespace` where it is nothing else; otherwise the first of
// letters, digits and punctuation of which it has a character. Beyond ASCII, the characters of
// U+00A1 to U+00BF and U+2000 to U+206F and U+3001 to U+303F count as punctuation, symbols (U+2070
// to U+2BFF, from U+1F000 on) and what is left as other, and all else as letters. No text (control
// tokens), control characters, and bytes that are no whole character of UTF-8 are `other`: so are,
// of byte tokens, all beyond ASCII.
TokenClass token_class(std::string_view text);

}  // namespace attnres
