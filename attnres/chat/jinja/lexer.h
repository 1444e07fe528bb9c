// A template's source as tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace attnres::jinja {

struct Token {
  enum class Kind {
    text,
    output_begin,
    output_end,
    block_begin,
    block_end,
    name,
    string,
    integer,
    number,
    symbol,
    end
  };
  Kind kind;
  std::string value;  // a string's without its quotes and escapes
  int line;
};

// As Jinja has it with trim_blocks and lstrip_blocks, without comments. Throws Error naming the
// line.
std::vector<Token> tokens_of(std::string_view source);

}  // namespace attnres::jinja
