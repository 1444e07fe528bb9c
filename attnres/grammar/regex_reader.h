// Reads regular expressions, strictly: what is not taken is refused by name.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "attnres/grammar/characters.h"

namespace attnres {

struct RegexNode {
  enum class Kind { characters, sequence, choice, repetition };
  static constexpr int64_t kUnbounded = -1;

  Kind kind = Kind::sequence;
  Characters characters = {};         // one of them
  std::vector<RegexNode> parts = {};  // of a repetition one
  int64_t least = 0, most = 0;        // how often it is repeated
};

// The part itself where there is only one.
RegexNode joined(RegexNode::Kind kind, std::vector<RegexNode> parts);

// Throws Error that names the position, counted in characters from 1.
RegexNode read_regex(std::string_view expression);

}  // namespace attnres
