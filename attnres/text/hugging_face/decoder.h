// How a tokenizer.json makes text of tokens ("decoder").
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "attnres/text/hugging_face/json_part.h"

namespace attnres {

struct DecodedTokens;

// Serves any number of threads.
class Decoder {
 public:
  // ByteLevel, ByteFallback, Fuse, Strip, Replace, Metaspace and Sequence. Throws UnreadTokenizer
  // on others, naming them, and on none.
  explicit Decoder(const JsonPart& part);

  // Tokens are as the vocabulary writes them. Bytes that are no character stay as they are; Hugging
  // Face's gives U+FFFD for them.
  std::string decode(std::vector<std::string> tokens) const;
  // A token within a text, with nothing taken away that belongs to the text's begin or end.
  std::string decode_within(std::string token) const;

 private:
  // Throws Error as check_growth.
  void run(DecodedTokens& tokens) const;

  // Each changes the tokens that the one before it left.
  std::vector<std::function<void(DecodedTokens&)>> steps_;
};

}  // namespace attnres
