// Words for a shell.
#pragma once

#include <string>

namespace attnres {

// The word in quotes.
std::string shell_quoted(const std::string& word);

// The word as a shell takes it, in quotes where it needs them.
std::string for_shell(const std::string& word);

}  // namespace attnres
