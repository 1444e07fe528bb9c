// Words for a shell.
#pragma once

#include <string>

namespace attnres {

// The word as a shell takes it.
std::string for_shell(const std::string& word);

}  // namespace attnres
