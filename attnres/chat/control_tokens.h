// Control tokens as a text writes them, <|im_end|>, whatever the model.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "attnres/text/tokenizer.h"

namespace attnres {

struct ControlToken {
  int32_t id = 0;
  size_t bytes = 0;  // of its name
};

// The one that a text begins with: <...> or [...], and known to the tokenizer.
std::optional<ControlToken> leading_control_token(const Tokenizer& tokenizer,
                                                  std::string_view text);

}  // namespace attnres
