// Formats of JSON schemas' texts, as patterns: only some of the texts of a format match its
// pattern, and all that match are of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace attnres {

struct StringFormat {
  std::string name;
  std::string pattern;                // of ASCII
  int64_t shortest = 0, longest = 0;  // of the texts that match, in characters
};

// Null where there is none of this name.
const StringFormat* string_format(const std::string& name);

std::vector<std::string> string_format_names();

// Whether a format says how a text is shown or where it leads, and nothing of its characters.
bool is_any_text(const std::string& format);

}  // namespace attnres
