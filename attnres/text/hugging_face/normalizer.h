// What a tokenizer.json does to text before it is split ("normalizer").
#pragma once

#include <memory>
#include <string>

#include "attnres/text/hugging_face/json_part.h"

namespace attnres {

// Serves any number of threads.
class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(std::string& text) const = 0;
};

// NFC, NFD, NFKC, NFKD, Prepend, Replace, Lowercase, Strip, StripAccents and Sequence; null of a
// part that is null. Throws UnreadTokenizer on others, naming them.
std::unique_ptr<Normalizer> read_normalizer(const JsonPart& part);

}  // namespace attnres
