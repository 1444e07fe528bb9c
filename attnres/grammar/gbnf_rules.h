// The rules of a grammar as llama.cpp has them (GBNF), as they are written.
#pragma once

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attnres/support/error.h"

namespace attnres {

inline constexpr int64_t kWithoutEnd = -1;

struct GbnfItem;
using GbnfSequence = std::vector<GbnfItem>;

struct GbnfItem {
  enum class Kind { nothing, characters, rule, group };
  Kind kind = Kind::nothing;
  std::string characters = {};  // a text or a class, as it is printed
  size_t rule = 0;
  std::vector<GbnfSequence> alternatives = {};  // of a group
  int64_t least = 1, most = 1;                  // times
};

struct GbnfRule {
  std::string name;
  size_t place;  // in the text, of its first use and then of its definition
  bool is_defined = false;
  std::vector<GbnfSequence> alternatives = {};
  bool may_be_empty = false, may_end = false;
};

// The rules of a text, root first. Throws Error on what is no grammar.
std::vector<GbnfRule> read_gbnf_rules(std::string_view text);

// The line, from 1, of a byte of a text.
size_t line_of(std::string_view text, size_t place);

// Throws Error with the line.
template <class... Args>
[[noreturn]] void refuse_gbnf(std::string_view text, size_t place,
                              fmt::format_string<Args...> format, Args&&... args) {
  fail("line {}: {}", line_of(text, place), fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace attnres
