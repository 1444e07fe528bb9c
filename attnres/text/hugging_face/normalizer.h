// What a tokenizer.json does to text before it is split ("normalizer").
#pragma once

#include <functional>
#include <string>

#include "attnres/text/hugging_face/json_part.h"

namespace attnres {

// Serves any number of threads.
using Normalizer = std::function<void(std::string& text)>;

// NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents and Sequence; none of a
// part that is null. Throws UnreadTokenizer on others, naming them.
Normalizer read_normalizer(const JsonPart& part);

}  // namespace attnres
