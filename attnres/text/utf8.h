// UTF-8 as RFC 3629 defines it: no overlong forms, no surrogates, nothing above U+10FFFF.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace attnres {

// What begins at the front of a text: a character, bytes that can never become one, or the first
// bytes of a character that the text ends in.
struct Utf8Step {
  enum class Kind { character, invalid, incomplete };
  Kind kind;
  size_t bytes;  // of the character; of the invalid or incomplete sequence
};
// `text` must not be empty.
Utf8Step utf8_step(std::string_view text);

// Offset of the first byte that is not part of a whole character; text.size() if there is none.
size_t first_invalid_utf8(std::string_view text);

// Throws Error naming `what` and the byte offset, counted from `start`, of what is not UTF-8.
void require_utf8(std::string_view text, std::string_view what, size_t start = 0);

// The same text with every invalid or incomplete sequence replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace attnres
