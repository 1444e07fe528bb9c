// Properties of characters, as Rust's standard library and regular expressions have them, or
// libraries with older tables that github.com/huggingface/tokenizers uses.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace attnres {

// The first character of a text that is UTF-8 and not empty.
struct Character {
  int32_t code;
  size_t bytes;
};
Character first_character(std::string_view text);
Character last_character(std::string_view text);

void append_utf8(int32_t code, std::string& text);

bool is_whitespace(int32_t code);      // White_Space
bool is_word_character(int32_t code);  // \w of Rust's regular expressions
bool is_numeric(int32_t code);         // Nd, Nl, No
bool is_punctuation(int32_t code);  // P*, and every ASCII character that is printed but no letter
bool is_combining_mark(int32_t code);  // M*

}  // namespace attnres
