// How byte-level tokenizers write bytes: each as GPT-2's character for it (gpt2_byte_characters).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace attnres {

std::string as_byte_characters(std::string_view bytes);

// The bytes for which a token's characters stand; nothing where one stands for none.
std::optional<std::string> bytes_of_characters(std::string_view token);

}  // namespace attnres
