// Control tokens as a text writes them, <|im_end|>, whatever the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "attnres/text/tokenizer.h"

namespace attnres {

struct ControlToken {
  int32_t id = 0;
  size_t begin = 0, bytes = 0;  // of its name in the text
};

// Those of a text, from its beginning on: <...> or [...], and known to the tokenizer.
std::vector<ControlToken> control_tokens_in(const Tokenizer& tokenizer, std::string_view text);

// A text, and of each byte whether it is a control token's.
struct MarkedText {
  std::string text = {}, control = {};

  void add(std::string_view more, bool is_control);
  void erase_first(size_t bytes);
  // Where a mark is, which is a control token's where this says so; npos: nowhere.
  size_t find(const MarkedText& mark, size_t from = 0) const;
};

// As the tokenizer has it: with control tokens that it knows as such.
MarkedText marked_text(const Tokenizer& tokenizer, std::string_view text);

}  // namespace attnres
