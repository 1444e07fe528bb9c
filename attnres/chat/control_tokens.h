// Control tokens as a text writes them, <|im_end|>, whatever the model.
#pragma once

#include <cstddef>
#include <cstdint>
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

}  // namespace attnres
