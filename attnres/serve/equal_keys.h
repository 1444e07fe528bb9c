// Keys compared in a time that does not tell where they differ.
#pragma once

#include <cstddef>

namespace attnres {

// Texts have `size()` and bytes `[i]`. Which bytes are looked at follows from the two sizes alone.
template <class Text>
bool equal_keys(const Text& given, const Text& key) {
  unsigned char difference = given.size() == key.size() ? 0 : 1;
  for (size_t i = 0; i < key.size(); ++i) {
    difference |= static_cast<unsigned char>(key[i] ^ (i < given.size() ? given[i] : 0));
  }
  return difference == 0;
}

}  // namespace attnres
