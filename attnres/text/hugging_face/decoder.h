// How a tokenizer.json makes text of tokens ("decoder").
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attnres/text/hugging_face/json_part.h"

namespace attnres {

// Serves any number of threads.
class Decoder {
 public:
  // ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace and Sequence. Throws UnreadTokenizer
  // on others, naming them, and on none.
  explicit Decoder(const JsonPart& part);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  // Tokens are as the vocabulary writes them. Bytes that are no character stay as they are; Hugging
  // Face's gives U+FFFD for them.
  std::string decode(std::vector<std::string> tokens) const;
  // A token within a text, with nothing taken away that belongs to the text's begin or end.
  std::string decode_within(std::string token) const;

  // A step changes the tokens that the one before it left.
  class Step;

 private:
  std::vector<std::unique_ptr<Step>> steps_;
};

}  // namespace attnres
