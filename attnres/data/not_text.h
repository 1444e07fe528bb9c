// Files that are no plain text, by what they hold: their names say nothing.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace attnres {

struct NotText {
  std::string what;     // "is a zip archive"
  std::string instead;  // what to do: "unpack it"
};

// How much of a file's beginning shows which kind it is.
inline constexpr size_t kBytesThatShowTheKind = 16;

// What a file's bytes, or its first ones, are; nothing where they may be text. Text has no zero
// byte, no byte order mark of UTF-16 or UTF-32, and does not begin as archives, compressed files,
// images and the like do. It need not be UTF-8, which tokenizers ask for that need it.
std::optional<NotText> find_not_text(std::string_view bytes);

}  // namespace attnres
