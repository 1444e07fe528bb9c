#include "attnres/support/shell.h"

#include <algorithm>
#include <cctype>
#include <cstring>

namespace attnres {

std::string shell_quoted(const std::string& word) {
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string for_shell(const std::string& word) {
  const bool plain = !word.empty() && std::all_of(word.begin(), word.end(), [](unsigned char c) {
    return std::isalnum(c) || std::strchr("/._-+=:,@%", c) != nullptr;
  });
  return plain ? word : shell_quoted(word);
}

}  // namespace attnres
