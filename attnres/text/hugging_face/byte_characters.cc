#include "attnres/text/hugging_face/byte_characters.h"

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "attnres/text/bytes.h"
#include "attnres/text/hugging_face/unicode.h"
#include "attnres/text/utf8.h"

namespace attnres {

std::string as_byte_characters(std::string_view bytes) {
  static const std::vector<std::string> characters = gpt2_byte_characters();
  std::string text;
  for (const char byte : bytes) text += characters[static_cast<uint8_t>(byte)];
  return text;
}

std::optional<std::string> bytes_of_characters(std::string_view token) {
  static const std::unordered_map<int32_t, char> bytes = [] {
    std::unordered_map<int32_t, char> by_code;
    int byte = 0;
    for (const std::string& character : gpt2_byte_characters()) {
      by_code[first_character(character).code] = static_cast<char>(byte++);
    }
    return by_code;
  }();
  if (first_invalid_utf8(token) != token.size()) return std::nullopt;
  std::string text;
  while (!token.empty()) {
    const Character character = first_character(token);
    const auto byte = bytes.find(character.code);
    if (byte == bytes.end()) return std::nullopt;
    text += byte->second;
    token.remove_prefix(character.bytes);
  }
  return text;
}

}  // namespace attnres
